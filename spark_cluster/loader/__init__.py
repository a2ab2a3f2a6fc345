"""The search path for roles, playbooks, recipes and inventories: the project folder first."""
