from __future__ import annotations

import pytest

from layerbeam.transforms.hardware import (
    DeviceError,
    Hardware,
    cores,
    cpu_quota,
    load_tensorflow,
    memory_left,
    placement,
    slow_bfloat16,
)


def test_float32_is_never_tf32():
    assert not load_tensorflow(Hardware()).config.experimental.tensor_float_32_execution_enabled()


def test_the_cpu_is_always_there():
    assert load_tensorflow(Hardware(device="cpu")).config.get_visible_devices("GPU") == []


@pytest.mark.parametrize("device", ["gpu", "tpu"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(
        DeviceError, match=rf"^encoder\.device: {device}, and TensorFlow 2\.\d+\.\d+ sees none on .+, only [^\n]+$"
    ):
        load_tensorflow(Hardware(device=device))


def test_error_of_a_tpu_names_the_cause_in_one_line(monkeypatch):
    tf = load_tensorflow(Hardware())

    def fail(_: object) -> None:
        raise tf.errors.InternalError(
            None, None, "Graph execution error:\n\nDetected at node x\nno chip\n\t [[{{node x}}]]"
        )

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)
    seen = [tf.config.PhysicalDevice("/CPU:0", "CPU"), tf.config.PhysicalDevice("/TPU_SYSTEM:0", "TPU_SYSTEM")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: seen)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *_: None)
    with pytest.raises(DeviceError, match=r"only /CPU:0; fix the .+ \(no chip\)$"):
        load_tensorflow(Hardware(device="tpu"))


def test_a_gpu_that_is_there_gives_memory_as_it_is_asked_for(monkeypatch):
    tf = load_tensorflow(Hardware())
    grown = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["gpu 0", "gpu 1"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu 0", "gpu 1"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, enable: grown.append((gpu, enable)))
    load_tensorflow(Hardware(device="gpu"))
    assert grown == [("gpu 0", True), ("gpu 1", True)]


def test_threads_of_whoever_asks():
    assert Hardware(3).threads == 3
    assert Hardware(None).threads == cores()


def test_variables_of_a_tpu_are_placed_on_it(monkeypatch):
    tf = load_tensorflow(Hardware())
    with placement("cpu"):
        assert tf.Variable(1.0).device.endswith("CPU:0")
    monkeypatch.setattr(tf, "device", lambda name: pytest.fail(name))
    with pytest.raises(pytest.fail.Exception, match="/TPU:0"):
        placement("tpu")


@pytest.mark.parametrize(
    ("flags", "dtype", "is_slow"),
    [
        ("flags\t\t: fpu avx512f avx512_vnni\n", "bfloat16", True),
        ("flags\t\t: fpu avx512f avx512_vnni\n", "float32", False),
        ("flags\t\t: fpu avx512f avx512_bf16\n", "bfloat16", False),
        ("flags\t\t: fpu avx512f amx_bf16\n", "bfloat16", False),
        ("CPU part : 0xd40\n", "bfloat16", False),  # another kind of processor
        (None, "bfloat16", False),  # no such file
    ],
)
def test_bfloat16_on_processors_without_it(tmp_path, flags, dtype, is_slow):
    path = tmp_path / "cpuinfo"
    if flags:
        path.write_text(f"processor : 0\n{flags}")
    found = slow_bfloat16(dtype, path)
    assert (found is not None) == is_slow
    assert found is None or "is several times slower than float32" in found


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2.0),
        ("0::/", {"cpu.max": "max 100000"}, 2.0**31),
        ("0::/a/b", {"cpu.max": "800000 100000", "a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        (
            "4:memory:/\n3:cpuacct,cpu:/docker/1",
            {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"},
            1.5,
        ),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 2.0**31),
        ("3:cpuset:/", {"cpu.max": "100000 100000"}, 2.0**31),
        ("0::/", {}, 2.0**31),
    ],
)
def test_quota_of_a_container(tmp_path, groups, files, cpus):
    write_groups(tmp_path, groups, files)
    assert cpu_quota(tmp_path) == cpus


def write_groups(root, groups: str, files: dict[str, str]) -> None:
    named = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in named.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


STAT = "anon 700\nactive_file 20\ninactive_file 100"
OLD_STAT = "cache 1\ninactive_file 5\ntotal_active_file 0\ntotal_inactive_file 300"


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        ("0::/", {}, 5000 << 10),
        ("0::/", {"memory.max": "max", "memory.current": "900", "memory.stat": STAT}, 5000 << 10),
        ("0::/", {"memory.max": "1000", "memory.current": "900", "memory.stat": STAT}, 220),
        ("0::/", {"memory.max": "100", "memory.current": "900", "memory.stat": STAT}, 0),
        (
            "0::/a/b",
            {
                "a/memory.max": "2000",
                "a/memory.current": "1990",
                "a/memory.stat": STAT,
                "a/b/memory.max": "1000",
                "a/b/memory.current": "100",
                "a/b/memory.stat": STAT,
            },
            130,
        ),
        (
            "4:memory:/docker/1\n3:cpu:/",
            {
                "memory/memory.limit_in_bytes": "4000",
                "memory/memory.usage_in_bytes": "1000",
                "memory/memory.stat": OLD_STAT,
            },
            3300,
        ),
        ("4:cpuset:/", {"cpuset/memory.limit_in_bytes": "1", "cpuset/memory.usage_in_bytes": "1"}, 5000 << 10),
    ],
)
def test_memory_left_in_a_container(tmp_path, groups, files, left):
    write_groups(tmp_path, groups, files)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:   5000 kB\n")
    assert memory_left(tmp_path) == left


def test_memory_left_where_nothing_says_it(tmp_path):
    assert memory_left(tmp_path) is None
