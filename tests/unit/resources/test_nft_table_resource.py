"""NftTable, against an nft that keeps real tables in a file."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_cluster.resources import NftTable, Package

CHAINS = "chain input {\n  tcp dport 6379 drop\n}"
TABLE = NftTable("spark_cluster", CHAINS)
GONE = NftTable("spark_cluster", state="absent")


@pytest.fixture
def nft(node):
    node.install("nft")
    node.path("/etc").mkdir()
    with node.state("nft") as state:
        state["tables"] = {"ufw": ["chain mine {"]}
    return node


def test_two_documents_at_once_may_have_the_same_table(nft):
    """An image and a model are copied at the same time, say."""
    host = nft.host()
    with ThreadPoolExecutor(2) as pool:
        for kept in [pool.submit(TABLE._keep, host, "{}") for _ in range(300)]:
            kept.result()
    assert host.path(TABLE.listing).read_text() == "{}"


def test_a_node_without_nft(node):
    assert "there is no nft" in node.apply(TABLE).error
    assert node.apply(GONE).verdict == "ok"
    node.install("apt")
    with node.state("apt") as state:
        state["available"] = {"nftables": ["1.1.3-1"]}
    first, second = node.results(Package("nftables", makes=("command:nft",)), TABLE, check=True)
    assert (second.verdict, second.reason) == ("unknown", "after: Package:nftables"), first.error
