"""The fixtures of cli, for tests with and without processes."""

from cli_fixtures import closed_port, project, run
