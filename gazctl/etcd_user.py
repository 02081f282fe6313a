"""Who a command is to etcd, where etcd asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gazctl.command import dotted_option
from protocol.errors import ValidationError

PASSWORD_VARIABLE = "ETCD_PASSWORD"


def etcd_user_options(command: Any) -> Any:
    """There is no flag for the password: everybody on the machine sees the flags of a process."""
    user = dotted_option("--etcd.user", default=None, show_default="none", help="Its name in etcd, if etcd has users.")
    password = dotted_option(
        "--etcd.password-file",
        default=None,
        show_default=f"none: the password is in ${PASSWORD_VARIABLE}",
        help="The user's password, in the first line.",
    )
    return user(password(command))


def etcd_user(given: dict[str, Any]) -> Any:
    from allocator.etcd_connections import EtcdUser

    name, path = given["etcd_user"], given["etcd_password_file"]
    if not name:
        if path:
            raise ValidationError("a password needs the name of a user", "etcd.user")
        return None
    if path:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            # What could not be decoded is part of the error, and might be logged with it.
            raise ValidationError("expected a text in UTF-8", "etcd.password-file") from None
        password = lines[0] if lines else ""
    else:
        password = os.environ.get(PASSWORD_VARIABLE, "")
    if not password:
        raise ValidationError(
            f"a user needs a password: name a file that holds it, or set ${PASSWORD_VARIABLE}", "etcd.password-file"
        )
    return EtcdUser(name, password)
