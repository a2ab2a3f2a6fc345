"""The web page of `dashboard`: what `top` sees, runs, reports and findings, in a browser."""
