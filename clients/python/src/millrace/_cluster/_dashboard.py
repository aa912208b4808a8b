"""The URL of the scheduler's HTTP port, as the user's browser reaches it."""

from __future__ import annotations

import importlib.util
import os
import warnings

from millrace import _check

#: The setting of Dask that says how links are made, with {scheme}, {host}, {port}, and the names of
#: environment variables.
_SETTING = "distributed.dashboard.link"


def link(address: str) -> str:
    """Returns the URL of the HTTP port at an address (host:port), or "" if there is none."""
    if not address:
        return ""
    plain = f"http://{address}/"
    template = _template()
    if not template:
        return plain
    host, _, port = address.rpartition(":")
    try:
        return template.format(**{**os.environ, "scheme": "http", "host": host, "port": port})
    except (LookupError, ValueError, AttributeError) as e:
        warnings.warn(
            f"the setting {_SETTING} of Dask, {template!r}, makes no link ({e!r}): name {{scheme}}, {{host}}, {{port}} "
            f"or variables of the environment in it. The link is {plain}",
            stacklevel=_check.outside_stacklevel(),
        )
        return plain


def _template() -> str:
    if importlib.util.find_spec("dask") is None:
        return ""
    import dask.config

    return str(dask.config.get(_SETTING, None) or "")
