"""Compiles softnce/_core/cpu.c for wheels and editable installations; without a C compiler they do without it."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        path = Path(self.root) / "src" / "softnce" / "_core" / "build.py"
        spec = importlib.util.spec_from_file_location("softnce_core_build", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        built = module.build(quiet=True)
        if built is None:
            self.app.display_warning("softnce: no C compiler found; losses on a CPU use the slower plain path")
            return
        build_data["artifacts"].append(f"/src/softnce/_core/{built.name}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
