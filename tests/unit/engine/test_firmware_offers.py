"""What fwupd offers on a node, which is foreign input: nothing in another form is an offer."""

import json

import pytest

from spark_cluster.engine import provisioning

DEVICE = {"Name": "UEFI", "DeviceId": "4bde", "Version": "1", "Releases": [{"Version": "2"}]}


def test_an_offer_is_a_command():
    (found,) = provisioning.updates(json.dumps({"Devices": [DEVICE]}))
    assert (found.title, found.argv[:3]) == (
        "firmware of UEFI: 1 to 2",
        ("fwupdmgr", "update", "4bde"),
    )


@pytest.mark.parametrize("change", [{"Name": ["x"]}, {"DeviceId": 7}, {"Releases": {"a": 1}},
                                    {"Releases": ["x"]}, {"Name": "ConnectX-7"}])  # fmt: skip
def test_what_is_none(change):
    assert provisioning.updates(json.dumps({"Devices": [DEVICE | change]})) == []


@pytest.mark.parametrize("text", ["", "7", "[]", '{"Devices": 7}', "[" * 100_000])
def test_an_answer_in_another_form(text):
    assert provisioning.updates(text) == []
