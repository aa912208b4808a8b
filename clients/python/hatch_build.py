"""The build hook of the package. With WHEEL_PROGRAM in the environment, the wheel carries this
program, and has the tag WHEEL_TAG; see tools/wheel. Otherwise it is a wheel for any machine, and
has no program."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program = os.environ.get("WHEEL_PROGRAM")
        if not program or version == "editable":
            return
        build_data["force_include"][program] = "millrace/bin/millrace"
        build_data["tag"] = os.environ["WHEEL_TAG"]
        build_data["pure_python"] = False
