"""The official data files, as the tests of tasks lay them out."""

from tests.tasks.conftest import official_data, unpacked

__all__ = ["official_data", "unpacked"]
