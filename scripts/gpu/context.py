"""State that all steps share: folders, the tested plug-in, the environment of programs, and the known problems."""
import dataclasses
import os
import pathlib

from gpu.shell import CheckError, Skip

# With SHOAL_COMM_TIMEOUT, a collective that hangs reports a timeout before the time limit of its step. The driver reads
# the two CUDA variables at the first CUDA call (devices/cuda/driver_environment.h).
GPU_ENVIRONMENT = {"SHOAL_COMM_TIMEOUT": "5", "CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
LONG_RUN = {"SHOAL_COMM_TIMEOUT": "15"}  # for models, because their ranks start at different times
# Environment for programs with one device. With LAZY, the driver loads a kernel at its first launch. All kernels
# together have 6 MB (30 MB uncompressed). Kernels that wait for each other need EAGER.
LAZY = {"CUDA_MODULE_LOADING": "LAZY"}
PER_GPU = "SHOAL_CUDA_DEVICES_PER_GPU"
ONE, TWO = "CUDA0", "CUDA0.0,CUDA0.1"


@dataclasses.dataclass
class Context:
    root: pathlib.Path
    build: pathlib.Path
    deps: pathlib.Path | None
    emulated: bool
    jobs: int
    models: pathlib.Path
    commit: str = "unknown"
    machine: dict = dataclasses.field(default_factory=dict)  # set by the step `environment`
    broken: set[str] = dataclasses.field(default_factory=set)  # targets that could not be built or unpacked
    background: list = dataclasses.field(default_factory=list)  # processes that write models
    off: tuple[str, ...] = ()  # features that SHOAL_CUDA_OFF disables in all programs
    figures: dict = dataclasses.field(default_factory=dict)  # benchmark results from which the ratios are computed
    doubts: dict[str, str] = dataclasses.field(default_factory=dict)  # failed step -> note to add to later results

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

    def log(self, step: str) -> pathlib.Path:
        return self.build / "gpu_check" / f"{step}.log"

    def program(self, name: str, with_plugin=True) -> pathlib.Path:
        """Path of the program of this target. Raises Skip if the step `build` or `programs` has reported the target as
        missing."""
        path = self.build / "bin" / name
        for target, file in [(name, path), *([(self.plugin_target, self.plugin)] if with_plugin else [])]:
            if target in self.broken:
                raise Skip(f"there is no {target}")
            if not file.exists():
                raise CheckError(f"no {file}: run the step 'build' first")
        return path

    def shoal(self, command: str, devices: str, *more) -> list:
        return [self.program("shoal"), command, "--plugin", self.plugin, "--devices", devices, *more]

    def environment(self, off=(), **more: str) -> dict:
        """Environment for a program. `off`: features that SHOAL_CUDA_OFF disables. `more`: additional variables."""
        features = dict.fromkeys((*self.off, *off))
        env = {"SHOAL_TEST_PLUGIN": str(self.plugin), **(self.emulation() if self.emulated else GPU_ENVIRONMENT),
               **({"SHOAL_CUDA_OFF": ",".join(features)} if features else {}), **more}  # fmt: skip
        if self.deps:
            folders = [str(self.build / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            env["LD_LIBRARY_PATH"] = os.pathsep.join(folders)
        return env

    def for_devices(self, devices: str) -> dict:
        """Environment for `shoal` if it runs a model on these devices."""
        return {**LONG_RUN, **({PER_GPU: "2"} if devices == TWO else {})}

    def emulation(self) -> dict:
        """Environment of the emulator, as in tests/cuda/CMakeLists.txt. The emulated GPU has enough processors for the
        kernels of many ranks. The NCCL library is a stand-in."""
        return {"SHOAL_EMULATED_PROCESSORS": "132", "SHOAL_NCCL_LIBRARY": str(self.nccl_standin)}
