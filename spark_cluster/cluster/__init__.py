"""Clusters as programs use them, the command line among them: opened, run, watched, with results.

The class is `spark_cluster.cluster.cluster.Cluster`; users import it as `spark_cluster.Cluster`.
"""
