"""The web page of `spark-cluster dashboard`: the nodes live, for this machine's user only.

`server.py` has what the pages show and who may see it; the page itself is in `assets/`, plain HTML,
CSS and JavaScript that loads nothing from elsewhere. It changes nothing on the nodes: what it asks
them is the sampling of `bench/` and the commands of QUESTIONS. To add a view, add a question or a
route to `server.py` and draw it in `assets/`; nothing but the command imports this room.
"""
