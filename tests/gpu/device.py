"""Prints the device of the GPU kit, or says what is missing and what to do, with status 1.

python device.py gpu|cpu [--driver]

With --driver it looks for NVIDIA's driver only, which needs no package.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import re
import sys

OLDEST_DRIVER = 12_000  # the driver's CUDA version, times 1,000: that of NVIDIA's packages, whose names end in cu12


def describe(device: str) -> str:
    """The name of a GPU with its compute capability; `cpu` for the processor. DeviceError if there is none."""
    from layerbeam.transforms.hardware import Hardware, load_tensorflow

    tf = load_tensorflow(Hardware(1, device))
    if device == "cpu":
        return "cpu"
    details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
    capability = ".".join(map(str, details["compute_capability"]))
    return f"{details['device_name']}, compute capability {capability}"


def driver_problems() -> list[str]:
    """What is wrong with NVIDIA's driver; nothing if it sees a GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return [
            f"NVIDIA's driver is missing ({error}): install it; if it is installed, add the folder of libcuda.so.1 to "
            "LD_LIBRARY_PATH; start a container with the GPU (docker run --gpus all)"
        ]
    count, version = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return [
            f"NVIDIA's driver sees no GPU (CUDA error {status}): `nvidia-smi` must list one; see CUDA_VISIBLE_DEVICES"
        ]
    if version.value < OLDEST_DRIVER:
        return [f"NVIDIA's driver is for CUDA {version.value // 1000}: install 525 or newer, for CUDA 12"]
    return []


def missing_packages() -> list[str]:
    """NVIDIA's packages that this TensorFlow asks for and that are not installed."""
    asked = [line for line in importlib.metadata.requires("tensorflow") or [] if "and-cuda" in line]
    installed = {found.metadata["Name"].lower() for found in importlib.metadata.distributions()}
    return [name for line in asked for name in re.findall(r"^[\w-]+", line) if name not in installed]


def problems() -> list[str]:
    """Why TensorFlow sees no GPU, each with what to do."""
    found = driver_problems()
    if packages := missing_packages():
        found.append(
            f"packages of CUDA libraries are missing: {', '.join(packages)}: `make test-gpu` installs them, or `pip "
            "install 'tensorflow[and-cuda]'`"
        )
    return found or [
        "the driver and the packages of CUDA libraries are there; TensorFlow prints which library it cannot load: "
        "TF_CPP_MIN_LOG_LEVEL=0 python -c 'import tensorflow as tf; tf.config.list_physical_devices()'"
    ]


def print_device(device: str) -> list[str]:
    """Print the device. The problems, if there is none."""
    from layerbeam.transforms.hardware import DeviceError

    try:
        print(f"device: {describe(device)}", flush=True)
    except DeviceError:
        return problems()
    return []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device", choices=("gpu", "cpu"))
    parser.add_argument("--driver", action="store_true")
    given = parser.parse_args()
    found = driver_problems() if given.driver else print_device(given.device)
    if found:
        steps = "".join(f"\n  - {problem}" for problem in found)
        sys.exit(f"no GPU can be used on this machine:{steps}\nDEVICE=cpu runs the same on the processor.")


if __name__ == "__main__":
    main()
