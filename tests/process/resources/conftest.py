"""The fixtures of resources, for tests with and without processes."""

from resource_fixtures import accounts, apply, docker, host, node
