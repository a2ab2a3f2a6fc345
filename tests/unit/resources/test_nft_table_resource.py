"""NftTable, against an nft that keeps real tables in a file."""

from concurrent.futures import ThreadPoolExecutor

from spark_cluster.resources import NftTable


def test_two_documents_at_once_may_have_the_same_table(node):
    """An image and a model are copied at the same time, say."""
    host, table = node.host(), NftTable("spark_cluster", "chain input {\n}")
    with ThreadPoolExecutor(2) as pool:
        for kept in [pool.submit(table._keep, host, "{}") for _ in range(300)]:
            kept.result()
    assert host.path(table.listing).read_text() == "{}"
