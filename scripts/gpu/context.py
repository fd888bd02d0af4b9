"""What all steps share: folders, the plug-in that is tested, the environment of its programs."""
import dataclasses
import os
import pathlib

from gpu.shell import CheckError, Skip


# For every program that uses a GPU: a collective that hangs says so before its step's time is over; and what the driver
# reads when CUDA is first called (devices/cuda/driver_environment.h).
GPU_ENVIRONMENT = {"SHOAL_COMM_TIMEOUT": "5", "CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
LONG_RUN = {"SHOAL_COMM_TIMEOUT": "15"}  # of models: ranks begin at different times


@dataclasses.dataclass
class Context:
    root: pathlib.Path
    build: pathlib.Path
    deps: pathlib.Path | None
    emulated: bool
    jobs: int
    models: pathlib.Path
    commit: str = "unknown"
    machine: dict = dataclasses.field(default_factory=dict)  # filled by the step environment
    carried: bool = False  # the programs came with `deps`, nothing is built
    broken: set[str] = dataclasses.field(default_factory=set)  # targets that the step build could not make
    background: list = dataclasses.field(default_factory=list)
    figures: dict = dataclasses.field(default_factory=dict)  # of the benchmarks, for the ratios

    @property
    def plugin(self) -> pathlib.Path:
        where = "tests/cuda/libshoal-cuda-emulated.so" if self.emulated else "bin/libshoal-cuda.so"
        return self.build / where

    @property
    def plugin_target(self) -> str:
        return "shoal_cuda_emulated" if self.emulated else "shoal_cuda"

    @property
    def nccl_standin(self) -> pathlib.Path:
        return self.build / "tests/cuda/libnccl-standin.so"

    @property
    def prefix(self) -> pathlib.Path:
        """Where GoogleTest is installed when it is built from its sources."""
        return self.build / "prefix"

    def log(self, step: str) -> pathlib.Path:
        return self.build / "gpu_check" / f"{step}.log"

    def program(self, name: str, with_plugin=True) -> pathlib.Path:
        """Of what was built, by name of its target; Skip where the step build has said already that it is missing."""
        path = self.build / "bin" / name
        for target, file in [(name, path), *([(self.plugin_target, self.plugin)] if with_plugin else [])]:
            if target in self.broken:
                raise Skip(f"{target} was not built")
            if not file.exists():
                raise CheckError(f"no {file}: run the step build first")
        return path

    def environment(self, **more: str) -> dict:
        """Of every program that is built here. Libraries from `deps` need others that they do not say the place of."""
        env = {"SHOAL_TEST_PLUGIN": str(self.plugin), **(self.emulation() if self.emulated else GPU_ENVIRONMENT), **more}
        libraries = self.library_folders()
        if libraries:
            env["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        return env

    def emulation(self) -> dict:
        """As in tests/cuda/CMakeLists.txt: room for the kernels of many ranks, and no NCCL that this machine may have."""
        return {"SHOAL_EMULATED_PROCESSORS": "132", "SHOAL_NCCL_LIBRARY": str(self.nccl_standin)}

    def library_folders(self) -> list[str]:
        if not self.deps:
            return []
        return sorted({str(file.parent) for file in (self.deps / "usr").glob("**/lib*.so.*")})
