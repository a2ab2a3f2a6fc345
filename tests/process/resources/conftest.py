"""The fixtures of resources, for tests with and without processes."""

from resource_fixtures import accounts, at_once, docker, node
