"""Parsers of what provisioning decides by: GID tables, host keys, free blocks of memory."""

import base64

import pytest
from cases import each_row

from spark_cluster.config import fact_gathering
from spark_cluster.config.fact_gathering import FreeBlocks, free_blocks

SYS = "/sys/class/infiniband"
NONE = "0000:0000:0000:0000:0000:0000:0000:0000\n"
IPV4 = "0000:0000:0000:0000:0000:ffff:c0a8:b10b\n"
LOCAL = "fe80:0000:0000:0000:4cbb:47ff:fe00:0101\n"


def key(kind, *parts, inner=None):
    """A public key as its file has it; `inner` is the kind that it names itself."""
    fields = (inner or kind, *parts)
    blob = b"".join(len(f).to_bytes(4, "big") + f.encode() for f in fields)
    return f"{kind} {base64.b64encode(blob).decode()}"


ED25519 = key("ssh-ed25519", "a" * 32)
RSA = key("ssh-rsa", "e", "n")
ECDSA = key("ecdsa-sha2-nistp256", "nistp256", "q")


def table(hca, *rows):
    """Files of one device's GID table; an entry that is empty has no readable type."""
    files = {}
    for index, (gid, kind) in enumerate(rows):
        files[f"{SYS}/{hca}/ports/1/gids/{index}"] = gid
        if kind:
            files[f"{SYS}/{hca}/ports/1/gid_attrs/types/{index}"] = kind + "\n"
    return files


def test_gid_index_is_the_roce_v2_entry_with_an_ipv4_address():
    v1, v2 = "IB/RoCE v1", "RoCE v2"
    files = table("rocep1s0f1", (LOCAL, v1), (LOCAL, v2), (IPV4, v1), (IPV4, v2), (NONE, ""))
    files |= table("roceP2p1s0f1", (LOCAL, v1), (LOCAL, v2), (NONE, ""), (IPV4, v1), (IPV4, v2))
    files |= table("rocep1s0f0", (LOCAL, v1), (LOCAL, v2))
    assert fact_gathering.gid_indexes(files) == {"rocep1s0f1": 3, "roceP2p1s0f1": 4}


def test_public_keys_lose_their_comments():
    assert fact_gathering.public_keys([f"{RSA} root@x\n", ED25519, ECDSA, "", "nothing"]) == (
        ECDSA,
        ED25519,
        RSA,
    )


@pytest.mark.parametrize(
    "text",
    [
        key("ssh-ed25519", "a" * 32, inner="x\n@cert-authority * ssh-ed25519 AAAA\n#"),
        key("x-y", "a" * 32),
        key("ssh-dss", "p", "q"),
        key("ssh-ed25519", "a" * 32, inner="ssh-rsa"),
        key("ssh-ed25519", "a" * 32, "more"),
        ED25519[:-8],
        "ssh-ed25519 AAA",
        "ssh-ed25519 \N{LATIN SMALL LETTER E WITH ACUTE}",
        f'command="x-y" {ED25519}',
    ],
    ids=range(9),
)
def test_what_is_no_whole_key_of_a_known_kind_is_left_out(text):
    """A node's files are its own: what they hold goes into known_hosts and authorized_keys."""
    assert fact_gathering.public_keys([text, RSA]) == (RSA,)


# --- free memory in large blocks, by the kernel's page size and its largest order -----------------


GIB, MIB = 2**30, 2**20


@each_row(__file__, "free_blocks.toml", "large_blocks_by_the_size_of_a_page")
def test_large_blocks_by_the_size_of_a_page(text, page_size, size, large, fragmented):
    """P06: no physically contiguous memory is left although gigabytes are free."""
    found = free_blocks(text, page_size)
    assert (found.size, found.large, found.fragmented) == (size * MIB, large * MIB, fragmented)


@pytest.mark.parametrize(
    "text", ["", "Node 0, zone", "Node 0, zone Normal x 1", f"Node 0, zone Normal {'9' * 400}"]
)
def test_what_has_no_zone_says_nothing(text):
    assert free_blocks(text, 4096) is None


def test_in_words():
    shown = str(FreeBlocks(3 * GIB, GIB // 2, 16 * MIB))
    assert shown == "0.5 of 3.0 GiB free memory in blocks of 16 MiB or more"
