"""Checks of one Spark, and of several compared, without changing anything.

A check is a pure function from what a node answered to one verdict; `registry` names them all.
"""
