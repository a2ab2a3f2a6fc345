"""Reboots and cut connections in the middle of a play: waited for, entered again, gone on."""

import pytest
from piped_cluster import BOOT_ID
from waiting import FAR_S, HANG_S

from spark_cluster.errors import Failed, NotBack, Unreachable
from spark_cluster.resources import Command, File, Reboot
from spark_cluster.runner.events import Options

BEFORE, AFTER = File("/before", content="1"), File("/after", content="2")


def reboot(**options):
    return Reboot("new kernel", **{"allowed": True, "when_changed": (BEFORE,), **options})


def verdicts(*words):
    return dict(zip((BEFORE.id, reboot().id, AFTER.id), words, strict=False))


def test_reboot_and_the_remainder_of_the_document_in_one_recap(start, nodes):
    play, events = start()
    applied = play.apply(play.nodes, [BEFORE, reboot(), AFTER])
    for name, node in nodes.items():
        assert events.verdicts(name) == verdicts("change", "change", "change")
        assert list(applied.results[name]) == [BEFORE.id, reboot().id, AFTER.id]
        (call,) = node.calls("systemd-run")
        assert " ".join(call) == (
            "--quiet --no-ask-password --on-active=1 --timer-property=AccuracySec=100ms "
            "systemctl reboot"
        )
        assert node.dialled == 4, "one at first, two in vain, one that was let in"
        assert play.connections.facts[name].boot_id == node.text(BOOT_ID)
        journal = node.text("var/lib/spark-cluster/journal/r1/changes.jsonl")
        assert [f'"resource": "{r}"' in journal for r in (BEFORE.id, reboot().id, AFTER.id)]
    told = [e for e in events.of("Result") if e.resource == reboot().id]
    assert all(e.reason.startswith("rebooted, back after") and e.seconds > 0 for e in told)
    assert any("waiting for it to come back" in e.text for e in events.of("Progress"))
    # The lock was taken again, and the same again changes nothing and reboots nobody.
    assert all((n.root / "run/spark-cluster/locks/run").read_text() for n in nodes.values())
    assert not play.apply(play.nodes, [BEFORE, reboot(), AFTER]).changed


def test_one_that_does_not_come_back_and_one_that_does(start, nodes):
    nodes["spark1"].reboots(away=100_000)
    play, events = start()
    within = {"spark1": 0.3, "spark2": HANG_S}
    play.on_each(
        play.nodes,
        lambda n: play.apply(n, [BEFORE, reboot(timeout_s=within[n.name]), AFTER], fail_fast=False),
    )
    error = play.out["spark1"]
    assert isinstance(error, NotBack)
    assert error.exit_code == 3
    assert "did not come back within 0.3 s after the reboot: no answer" in error.message
    assert "from AC for 60 s" in error.hint
    assert events.verdicts("spark1") == verdicts("change")
    assert events.verdicts("spark2") == verdicts("change", "change", "change")
    assert [n.name for n in play.nodes] == ["spark2"]
    assert play.apply(play.nodes, [File("/more", content="")], fail_fast=False).changed
    (told,) = events.of("NodeFailed")
    assert (told.node, told.unreachable) == ("spark1", True)


def test_one_that_does_not_even_go_down(start, nodes):
    nodes["spark1"].programs["systemd-run"] = lambda *_: ""
    play, _ = start("spark1")
    with pytest.raises(NotBack, match="it has not gone down"):
        play.apply(play.nodes, [BEFORE, reboot(timeout_s=0.3), AFTER])


def test_check_mode_reboots_no_one(start, nodes):
    play, events = start("spark2", options=Options(check=True), change=False)
    play.apply(play.nodes, [BEFORE, reboot(), AFTER])
    assert events.verdicts("spark2") == verdicts("change", "change", "change")
    (told,) = (e for e in events.of("Result") if e.resource == reboot().id)
    assert told.reason == f"would reboot: a change of {BEFORE.id}"
    assert nodes["spark2"].calls("systemd-run") == []


def test_required_false_is_noted_and_gone_on(start, nodes):
    nodes["spark1"].put("run/reboot-required", "")
    play, events = start("spark1")
    play.apply(play.nodes, [reboot(when_changed=(), allowed=False, required=False), AFTER])
    assert events.verdicts("spark1") == {reboot().id: "skipped", AFTER.id: "change"}
    assert "reboot pending: /run/reboot-required" in events.of("Note")[0].text


def test_another_run_that_takes_the_lock_meanwhile(start, nodes):
    """The scratch reboot leaves another run's agent there, with the lock."""
    play, _ = start("spark1")
    inner = play.connections.reconnect

    def reconnect(name, booted_before=""):
        inner(name, booted_before)
        nodes["spark1"].session().request("lock", owner={"run": "r2", "command": "down"})

    play.connections.reconnect = reconnect
    with pytest.raises(Failed, match=r"another run is in progress there: .*`down`"):
        play.apply(play.nodes, [BEFORE, reboot(), AFTER])


def test_not_next_to_other_work_of_the_run(start, nodes):
    play, _ = start("spark1")
    (spark,) = play.nodes
    play.session(spark).submit("run", argv=["sleep", str(FAR_S)])
    with pytest.raises(Failed, match="other work of this run is going on on this node"):
        play.apply(play.nodes, [BEFORE, reboot()])


# -- cut connections -------------------------------------------------------------------------------


def die_once(nodes, name="/died"):
    """A command that kills its agent the first time."""
    path = nodes["spark1"].root / name.lstrip("/")
    return Command("die", ("sh", "-c", f"test -e {path} || {{ touch {path}; kill -9 $PPID; }}"))


def test_a_lost_connection_is_made_again_and_the_document_gone_on_with(start, nodes):
    play, events = start("spark1")
    die = die_once(nodes)
    applied = play.apply(play.nodes, [BEFORE, die, AFTER])
    results = {BEFORE.id: "change", die.id: "change", AFTER.id: "change"}
    assert events.verdicts("spark1") == results
    assert list(applied.results["spark1"]) == list(results)
    assert len([e for e in events.of("Result") if e.resource == BEFORE.id]) == 1
    lost, back = events.of("Note")
    assert "the connection was lost" in lost.text
    assert back.text.startswith("connected again after ")
    assert back.text.endswith(f"going on at {die.id}")


def test_what_is_lost_twice_at_the_same_place_is_lost(start, nodes):
    play, events = start("spark1")
    always = Command("die", ("sh", "-c", "kill -9 $PPID"))
    with pytest.raises(Unreachable, match="the connection was lost"):
        play.apply(play.nodes, [BEFORE, always, AFTER])
    assert events.verdicts("spark1") == {BEFORE.id: "change"}


def test_a_node_that_stays_away_is_lost(start, nodes, monkeypatch):
    monkeypatch.setattr("spark_cluster.runner.delivery.RECONNECT_S", 0.2)
    play, _ = start()

    def leave(_words, _stdin):
        nodes["spark1"].away = 100_000
        return ""

    nodes["spark1"].programs["leave"] = leave
    away = Command("go", ("sh", "-c", "leave; kill -9 $PPID"))
    spark1, spark2 = play.nodes
    with pytest.raises(Unreachable):
        play.apply(spark1, [away])
    assert play.apply(spark2, [AFTER]).changed


def test_in_check_mode_a_lost_connection_is_the_end(start, nodes):
    """The lost agent alone knew what earlier resources would have made."""
    play, _ = start("spark1", options=Options(check=True), change=False)
    die = Command("die", ("sh", "-c", "kill -9 $PPID"), reads=True)
    with pytest.raises(Unreachable):
        play.apply(play.nodes, [BEFORE, die, AFTER])


# -- one by one ------------------------------------------------------------------------------------


def stepping(*answers):
    asked, left = [], list(answers)

    def ask(node, change):
        asked.append((node, change["id"]))
        return left.pop(0)

    return Options(step=True, ask=ask, diff=True), asked


def test_step_asks_before_each_change_and_only_then(start, nodes):
    nodes["spark1"].put("fine", "x")
    options, asked = stepping("yes", "no", "yes")
    play, events = start("spark1", options=options)
    fine = File("/fine", content="x")
    document = [BEFORE, fine, AFTER, File("/last", content="3")]
    play.apply(play.nodes, document)
    assert [name for _, name in asked] == [BEFORE.id, AFTER.id, "File:/last"]
    assert list(events.verdicts("spark1").values()) == ["change", "ok", "skipped", "change"]
    assert not (nodes["spark1"].root / "after").exists()


def test_an_agent_of_this_run_that_has_not_noticed_its_end(start):
    play, _ = start("spark1")
    old = play.connections._sessions.pop("spark1")
    play.connections.reconnect("spark1")
    with pytest.raises(Unreachable, match="the previous agent is still running"):
        play.connections.enter("spark1")
    old.close()
    play.connections.enter("spark1")
