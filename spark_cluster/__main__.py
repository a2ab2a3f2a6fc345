"""`python -m spark_cluster` is the same as `spark-cluster`."""

from spark_cluster.cli import main

if __name__ == "__main__":
    main()
