"""Secrets of a recipe, which are files, become variables of the program."""

import subprocess

from spark_cluster.engine.engine import SECRET_ENV, WITH_SECRET_ENV


def test_the_program_has_the_secrets_as_variables(tmp_path):
    script = WITH_SECRET_ENV.replace(SECRET_ENV, str(tmp_path))
    (tmp_path / "ONE").write_text("a 'quoted' $HOME value")
    (tmp_path / "TWO").write_text("2")
    show = ("sh", "-c", 'printf "%s|%s|%s" "$ONE" "$TWO" "$1"', "x", "word with space")
    done = subprocess.run(["sh", "-c", script, *show], capture_output=True, text=True, check=True)
    assert done.stdout == "a 'quoted' $HOME value|2|word with space"
