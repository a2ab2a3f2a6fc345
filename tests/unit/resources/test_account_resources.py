"""Group and User, against commands that write the scratch node's passwd and group."""

import grp
import pwd

from spark_cluster.resources import File, Group, Package, User


class TestGroup:
    def test_absent_is_made_and_then_left(self, accounts):
        group = Group("docker", gid=900, system=True)
        accounts.must_change(group)
        assert grp.getgrnam("docker").gr_gid == 900
        accounts.must_be_ok(group)

    def test_drift_is_repaired(self, accounts):
        assert accounts.apply(Group("video", gid=45)).verdict == "change"
        assert grp.getgrnam("video").gr_gid == 45
        assert accounts.apply(Group("video", gid=45)).verdict == "ok"
        assert accounts.apply(Group("video")).verdict == "ok"

    def test_absent_state(self, accounts):
        accounts.must_converge(Group("video", state="absent"))
        result = accounts.apply(Group("me", state="absent"))
        assert "cannot remove the primary group of user 'me'" in result.error

    def test_taken_number(self, accounts):
        assert "GID '44' already exists" in accounts.apply(Group("docker", gid=44)).error


class TestUser:
    def test_absent_is_made_and_then_left(self, accounts):
        user = User("nvidia", uid=1500, groups=("video", "render"), shell="/bin/bash")
        accounts.must_change(user)
        entry = pwd.getpwnam("nvidia")
        assert (entry.pw_uid, entry.pw_shell, entry.pw_dir) == (1500, "/bin/bash", "/home/nvidia")
        assert accounts.path("/home/nvidia").is_dir()
        assert grp.getgrnam("render").gr_mem == ["me", "nvidia"]
        accounts.must_be_ok(user)

    def test_group_of_its_name_that_is_there_is_taken(self, accounts):
        accounts.apply(Group("nvidia", gid=777))
        assert accounts.apply(User("nvidia")).verdict == "change"
        assert pwd.getpwnam("nvidia").pw_gid == 777

    def test_drift_is_repaired_and_other_groups_stay(self, accounts):
        accounts.put("/home/me/notes", "x")
        user = User("me", groups=("video",), shell="/bin/bash", home="/srv/me")
        accounts.must_change(user)
        assert grp.getgrnam("render").gr_mem == ["me"]
        assert grp.getgrnam("video").gr_mem == ["me"]
        assert accounts.path("/srv/me/notes").read_text() == "x"
        assert accounts.apply(user).verdict == "ok"

    def test_exact_groups(self, accounts):
        user = User("me", groups=("video",), exact_groups=True)
        assert accounts.apply(user).verdict == "change"
        assert grp.getgrnam("render").gr_mem == []
        assert accounts.apply(user).verdict == "ok"
        none = User("me", exact_groups=True)
        accounts.must_converge(none)

    def test_system_user_has_no_home(self, accounts):
        user = User("ray", system=True)
        assert accounts.apply(user).verdict == "change"
        assert pwd.getpwnam("ray").pw_uid < 1000
        assert not accounts.path("/home/ray").exists()
        assert user.provides() == ("user:ray", "group:ray")

    def test_absent_state_leaves_the_home(self, accounts):
        gone = User("me", state="absent")
        accounts.must_change(gone)
        assert accounts.path("/home/me").is_dir()
        assert accounts.apply(gone).verdict == "ok"

    def test_missing_group(self, accounts):
        user = User("nvidia", groups=("docker",))
        for result in (accounts.check(user), accounts.apply(user)):
            assert "there is no group 'docker'" in result.error
        result = accounts.check(Group("docker"), user)
        assert (result.verdict, result.reason) == ("unknown", "after: Group:docker")
        assert [r.verdict for r in accounts.results(Group("docker"), user)] == ["change"] * 2
        accounts.install("apt")
        package = Package("docker.io", makes=("group:docker2",))
        result = accounts.check(package, User("nvidia", groups=("docker2",)))
        assert result.reason == "after: Package:docker.io"

    def test_check_mode_knows_the_new_home(self, accounts):
        file = File("/home/nvidia/.bashrc", content="", owner="nvidia")
        assert accounts.check(User("nvidia"), file).verdict == "change"

    def test_shell_that_is_not_there(self, accounts):
        result = accounts.apply(User("me", shell="/bin/zsh"))
        assert "the shell /bin/zsh does not exist" in result.error
        assert pwd.getpwnam("me").pw_shell == "/bin/sh"

    def test_refusals_of_the_tools_are_shown(self, accounts):
        taken = pwd.getpwnam("me").pw_uid
        assert "is not unique" in accounts.apply(User("two", uid=taken)).error
        with accounts.state("accounts") as state:
            state["busy"] = "me"
        assert "currently used by process 4711" in accounts.apply(User("me", uid=4242)).error
