"""The table of models whose shape is known without a network, made from published configs."""
