"""models: a folder that is sent, and the token of a download; the rest is in cases/models.json."""

import pytest
from factories import make_recipe
from role_samples import a_spark, one

from spark_cluster.config.extension import Allowances
from spark_cluster.config.recipe_schema import Drafter, Model
from spark_cluster.config.recipe_settings import model_settings
from spark_cluster.engine import node_copies
from spark_cluster.errors import Refused
from spark_cluster.node.values import LaptopFile, Secret
from spark_cluster.resources import Directory, File


@pytest.fixture
def sent(role, tmp_path):
    """`sent()`: what sends the folder `m`."""
    given = {"name": "me/m", "path": "/srv/m", "source": "directory", "directory": tmp_path / "m"}
    return lambda: role("models", a_spark(), **given)


def test_a_folder_is_sent(sent, tmp_path):
    (tmp_path / "m/sub/deep").mkdir(parents=True)
    (tmp_path / "m/config.json").write_text("{}")
    (tmp_path / "m/sub/deep/w.bin").write_bytes(b"\0\xff")
    made = sent()
    folders = [r.path for r in made if isinstance(r, Directory)]
    assert folders[0] == "/srv/m"
    files = {r.path: r.content for r in made if isinstance(r, File)}
    assert files == {
        "/srv/m/config.json": LaptopFile(tmp_path / "m/config.json"),
        "/srv/m/sub/deep/w.bin": LaptopFile(tmp_path / "m/sub/deep/w.bin"),
    }
    order = [r.path for r in made]
    assert order.index("/srv/m/sub/deep") < order.index("/srv/m/sub/deep/w.bin")


def test_a_folder_that_cannot_be_sent(sent, tmp_path, monkeypatch):
    with pytest.raises(Refused, match="is not on this machine"):
        sent()
    (tmp_path / "m").mkdir()
    with pytest.raises(Refused, match="has 0 files"):
        sent()
    (tmp_path / "m/w.bin").write_bytes(b"x" * 2_000_000)
    monkeypatch.setattr(node_copies, "SENT_TO_EACH", 1_000_000)
    with pytest.raises(Refused, match="holds more than") as caught:
        sent()
    assert "source: hub" in caught.value.hint


def test_the_token_of_a_download_is_its_input_and_nothing_else(role, monkeypatch):
    def download():
        made = role("models", a_spark(), name="a/b", revision="r1", path="/srv/m", image="i:1")
        return one(made, "Command")

    monkeypatch.delenv("HF_TOKEN", raising=False)
    plain = download()
    assert not isinstance(plain.stdin, Secret)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = download()
    assert (found.stdin, isinstance(found.stdin, Secret), found.env) == ("hf_secret", True, {})
    # The unit is found again by these: a token that was changed meanwhile is no other download.
    assert found.argv == plain.argv
    assert "hf_secret" not in " ".join(found.argv) + repr(found)


@pytest.mark.parametrize("allowed", [(), ("HF_TOKEN",)])
def test_a_recipes_image_has_the_token_where_the_user_lets_it(role, monkeypatch, allowed):
    """It downloads by its own program, and may send the token anywhere."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    drafter = Drafter(method="eagle3", name="a/d", path="/srv/d", tokens=1)
    recipe = make_recipe(
        model=Model(name="a/b", path="/srv/m", served_name="m"), drafter=drafter
    ).with_allowances(Allowances(env=allowed))
    for given in model_settings(recipe):
        found = one(role("models", a_spark(), **given), "Command")
        assert found.stdin == ("hf_secret" if allowed else "")
