"""Command: each way to know whether it has to run."""

from waiting import FAR_S

from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, File


def touch(node, name="made"):
    return ("sh", "-c", f"echo x >> {node.path('/' + name)}")


def test_creates(node):
    command = Command("make it", touch(node), creates="/made")
    node.must_converge(command)
    assert node.path("/made").read_text() == "x\n"


def test_creates_that_does_not_appear(node):
    result = node.apply(Command("make it", ("true",), creates="/made"))
    assert "did not converge" in result.error


def test_unless(node):
    command = Command("make it", touch(node), unless=("test", "-e", str(node.path("/made"))))
    node.must_converge(command)


def test_reads_gives_its_output_and_is_never_a_change(node):
    command = Command("look", ("echo", "hello"), reads=True)
    for result in (node.check(command), node.apply(command)):
        assert (result.verdict, result.event["output"]) == ("ok", "hello\n")


def test_reads_that_fails_says_what_it_printed(node):
    result = node.apply(Command("look", ("sh", "-c", "echo broken >&2; exit 3"), reads=True))
    assert "sh ended with status 3: broken" in result.error


def test_when_changed_runs_only_then_and_is_not_lost(node):
    node.path("/etc").mkdir()
    file = File("/etc/a", content="1")
    command = Command("apply it", touch(node), when_changed=(file,))
    assert [r.verdict for r in node.results(file, command, check=True)] == ["change", "change"]
    assert [r.verdict for r in node.results(file, command)] == ["change", "change"]
    assert [r.verdict for r in node.results(file, command)] == ["ok", "ok"]
    assert node.path("/made").read_text() == "x\n"
    failing = Command("apply it", ("false",), when_changed=(file,))
    second = File("/etc/a", content="2")
    assert [r.verdict for r in node.results(second, failing)] == ["change", "failed"]
    assert [r.verdict for r in node.results(second, command)] == ["ok", "change"]


def test_without_a_condition_it_always_runs_and_check_mode_says_unknown(node):
    command = Command("always", touch(node))
    result = node.check(command)
    assert (result.verdict, result.reason) == ("unknown", "it runs on every run")
    assert [node.apply(command).verdict for _ in "ab"] == ["change", "change"]


def test_failure_has_the_last_lines(node):
    result = node.apply(Command("break", ("sh", "-c", "seq 20; exit 4")))
    assert "break: sh ended with status 4" in result.error
    assert "20" in result.error
    assert "\n    14" not in result.error


def test_other_statuses_can_be_fine(node):
    assert node.apply(Command("x", ("sh", "-c", "exit 4"), also_ok=(4,))).verdict == "change"


def test_too_long_and_no_such_command(node):
    slow = Command("x", ("sleep", str(FAR_S)), timeout_s=0.2)
    assert "not done after 0.2 s" in node.apply(slow).error
    assert "no-such-thing: no such command" in node.apply(Command("x", ("no-such-thing",))).error


FLAKY = 'n=$(cat "$0" 2>/dev/null || echo 0); echo $((n+1)) > "$0"; [ "$n" -ge "$1" ] || exit 4'


def flaky(node, fails, **options):
    """A command that fails so many times, and then not."""
    argv = ("sh", "-c", FLAKY, str(node.path("/count")), str(fails))
    return Command("fetch it", argv, **options)


def test_retries_are_shown_with_their_reason(node, monkeypatch):
    monkeypatch.setattr("spark_cluster.resources.command.RETRY_S", 0.01)
    result = node.apply(flaky(node, 2, retries=(2, "the server wakes up slowly")))
    assert result.verdict == "change"
    assert len(node.notes) == 2
    assert node.notes[0].startswith("fetch it: sh ended with status 4")
    assert node.notes[0].endswith("trying again (2 left): the server wakes up slowly")
    assert "(1 left)" in node.notes[1]


def test_retries_come_to_an_end(node, monkeypatch):
    monkeypatch.setattr("spark_cluster.resources.command.RETRY_S", 0.01)
    result = node.apply(flaky(node, 9, retries=(2, "the server wakes up slowly")))
    assert "sh ended with status 4" in result.error
    assert node.path("/count").read_text() == "3\n"
    reading = flaky(node, 4, retries=(2, "the server wakes up slowly"), reads=True)
    assert node.apply(reading).verdict == "ok"


def test_secrets_travel_by_stdin_and_env(node):
    command = Command(
        "log in",
        ("sh", "-c", f'cat > {node.path("/in")}; printf %s "$TOKEN" > {node.path("/env")}'),
        stdin=Secret("s1"),
        env={"TOKEN": Secret("s2")},
    )
    assert node.apply(command).verdict == "change"
    assert (node.path("/in").read_text(), node.path("/env").read_text()) == ("s1", "s2")
