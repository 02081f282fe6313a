from __future__ import annotations

from hypothesis import settings

# No deadline: a slow machine is not a defect. A failure prints the blob that replays it.
settings.register_profile("pygazette", deadline=None, print_blob=True)
settings.load_profile("pygazette")
