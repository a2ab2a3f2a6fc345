"""The fixtures of roles, for tests with and without processes."""

from role_samples import role
