"""The fixtures of roles, for tests with and without processes."""

from role_fixtures import role
