"""Horovod's published source: fetched, known by its hash, and changed in the few places that ``edits`` lists."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

from target import Target

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


DOORBELL = """// Ends the pause between two cycles early, if HOROVOD_CYCLE_TIME_IDLE is set: an operation has been asked for.
class Doorbell {
public:
  static Doorbell& Get() {
    static Doorbell* doorbell = new Doorbell; // never destroyed: Horovod's thread may outlive static objects
    return *doorbell;
  }
  static double IdleMs() {
    static const double idle_ms = [] {
      auto value = std::getenv("HOROVOD_CYCLE_TIME_IDLE");
      return value == nullptr ? 0.0 : std::atof(value);
    }();
    return idle_ms;
  }
  void Ring() {
    if (IdleMs() > 0.0) {
      std::lock_guard<std::mutex> guard(mutex_);
      rung_ = true;
      changed_.notify_one();
    }
  }
  template <typename Duration> void Wait(const Duration& most) {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait_for(guard, most, [this] { return rung_; });
    rung_ = false;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};
"""
"""Added to Horovod's source (``edits``)."""


class Edit(NamedTuple):
    """One change, wherever in the file the old text stands."""

    file: str
    old: str
    new: str


def edits(target: Target) -> list[Edit]:
    """The changes for one target, each of which must find its place."""
    standard, run_path = f"set(CMAKE_CXX_STANDARD {target.cxx_standard})", ";".join(target.run_path)
    return [
        # torch's headers need more than C++14; and the library finds torch by a path relative to itself, not where it was built.
        Edit("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)",
             f'{standard}\nset(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\nset(CMAKE_INSTALL_RPATH "{run_path}")'),
        Edit("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", standard),
        Edit("horovod/common/ops/cuda/CMakeLists.txt", "CMAKE_CUDA_STANDARD 11", "CMAKE_CUDA_STANDARD 17"),
        # Names whose headers the library of GCC 12 includes by the way, and that of GCC 13 no longer.
        Edit("horovod/common/common.h", "#include <memory>\n", "#include <memory>\n#include <stdexcept>\n"),
        Edit("horovod/common/group_table.h", "#include <queue>\n", "#include <queue>\n#include <string>\n"),
        # Python 3.12 has no distutils.
        Edit("horovod/torch/CMakeLists.txt", "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
             "import sysconfig; print(sysconfig.get_path('include'))"),
        # Read by sparkring before it imports Horovod, beside the torch version that Horovod's own build writes there. The ABI is TRUE for
        # libstdc++'s new one and FALSE for the old one: torch 2.6 has builds of both, and a library of one does not load beside the other.
        Edit("CMakeLists.txt", r"\"dummy\": \"none\"", rf"\"kind\": \"{target.kind}\", \"cxx11_abi\": \"${{Pytorch_CXX11}}\""),
        # Horovod lets go of process sets when all ranks agree to. Where one has died, asking it threw, and that ended the others.
        Edit("horovod/common/process_set.cc",
             """      InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      if (ProcessSetHasJustBeenRemoved()) {""",
             """      try {
        InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      } catch (const std::exception&) {
        id_to_process_set_[id].Finalize(status);
        DeregisterProcessSet(id);
        id_to_be_removed_ = SUCCESSFUL_REMOVAL;
      }
      if (ProcessSetHasJustBeenRemoved()) {"""),
        # Members of a set that meet across hosts met under their number in the set on their host. It differs between members where
        # a host has others of the set before them, and two groups may share it. Now a group meets under its first member's rank.
        Edit("horovod/common/gloo/gloo_context.cc", "std::to_string(local_rank) + process_set_suffix",
             "std::to_string(global_context_cross_ranks.front()) +\n                               process_set_suffix"),
        # In each cycle all ranks talk to each other, even if there is nothing to do, on cores that compute; and an operation waits for the
        # next cycle. With HOROVOD_CYCLE_TIME_IDLE cycles last that long, in ms, unless an operation is open, and one that is asked for
        # begins a cycle at once.
        Edit("horovod/common/tensor_queue.h", "#include <mutex>", "#include <condition_variable>\n#include <cstdlib>\n#include <mutex>"),
        Edit("horovod/common/tensor_queue.h", "class TensorQueue {", DOORBELL + "\nclass TensorQueue {"),
        Edit("horovod/common/tensor_queue.h", "  void PopMessagesFromQueue(",
             """  bool Empty() const {
    std::lock_guard<std::mutex> guard(mutex_);
    return tensor_table_.empty();
  }

  void PopMessagesFromQueue("""),
        Edit("horovod/common/tensor_queue.cc", "std::move(message));\n", "std::move(message));\n  Doorbell::Get().Ring();\n"),
        Edit("horovod/common/tensor_queue.cc", "std::move(messages[i]));\n", "std::move(messages[i]));\n    Doorbell::Get().Ring();\n"),
        Edit("horovod/common/operations.cc", "    horovod_global.shut_down = true;",
             "    horovod_global.shut_down = true;\n    Doorbell::Get().Ring();"),
        Edit("horovod/common/operations.cc", "  auto start_time = std::chrono::steady_clock::now();\n  auto sleep_duration",
             """  auto cycle_ms = state.parameter_manager.CycleTimeMs();
  if (Doorbell::IdleMs() > cycle_ms) {
    auto ids = state.process_set_table.Ids();
    if (std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return state.process_set_table.Get(id).tensor_queue.Empty(); })) {
      cycle_ms = Doorbell::IdleMs();
    }
  }
  auto start_time = std::chrono::steady_clock::now();
  auto sleep_duration"""),
        Edit("horovod/common/operations.cc", "state.parameter_manager.CycleTimeMs() * 1000.)) -", "cycle_ms * 1000.)) -"),
        Edit("horovod/common/operations.cc", "std::this_thread::sleep_for(sleep_duration)", "Doorbell::Get().Wait(sleep_duration)"),
        # A Horovod without NCCL must not link torch's CUDA libraries, even where there is a CUDA toolkit: it runs beside torch for CPUs.
        *([] if target.cuda else [
            Edit("cmake/Modules/FindPytorch.cmake", 'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)', "set(Pytorch_CUDA FALSE)")]),
    ]


def unpack_source(target: Target, work: Path) -> Path:
    """Get the sdist, refuse any other than the known one, and apply ``edits``; return its folder in ``work``."""
    sdist = os.environ.get("SPARKRING_HOROVOD_SDIST")
    with tarfile.open(_known(Path(sdist)) if sdist else _fetched(work)) as tar:
        tar.extractall(work)  # noqa: S202 - its content is known by hash, and Python 3.11.2 (Debian 12) has no filters yet
    source = work / f"horovod-{VERSION}"
    for file, old, new in edits(target):
        text = (source / file).read_text()
        if old not in text:
            raise SystemExit(f"{file} does not contain {old!r}; this recipe does not fit this source.")
        (source / file).write_text(text.replace(old, new))
    return source


def _known(sdist: Path) -> Path:
    """The file, if it holds the published sdist."""
    if not sdist.is_file():
        raise SystemExit(f"SPARKRING_HOROVOD_SDIST={sdist} is no file; name the horovod-{VERSION}.tar.gz of the package index.")
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise SystemExit(f"{sdist} has the SHA-256 {found}, horovod-{VERSION}.tar.gz has {SDIST_SHA256}; get it from the package index "
                         "again.")
    return sdist


def _fetched(work: Path) -> Path:
    """The sdist from the package index; pip checks its hash before it runs any of it."""
    wanted = work / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
                    "--require-hashes", "--dest", str(work), "--requirement", str(wanted)], check=True)
    return work / f"horovod-{VERSION}.tar.gz"
