"""Shared by all tests."""

import os

# threads that sleep between operations instead of spinning: several times faster when cores are shared
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
