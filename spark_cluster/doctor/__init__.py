"""What is wrong with one Spark, or with two beside each other, without changing anything.

A check is a pure function from what a node answered to one verdict; `registry` names them all.
"""
