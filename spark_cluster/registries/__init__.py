"""Recipes of registries: fetched at a fixed revision, converted, and put into the cache."""
