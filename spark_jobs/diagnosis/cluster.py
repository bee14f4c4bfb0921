"""Checks of Spark and of the machines that its tasks run on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from sparkring.errors import EnvironmentProblem, SparkringError
from sparkring.spark_jobs.diagnosis import survey
from sparkring.spark_jobs.diagnosis.check import Check, Status, sentence, verdict
from sparkring.spark_jobs.diagnosis.needs import MB, Needs
from sparkring.spark_jobs.diagnosis.packages import describe_horovod, is_missing, release
from sparkring.spark_jobs.diagnosis.survey import Machine, TaskReport
from sparkring.spark_jobs.launch.gpus.source import amount_of, describe, gpus_to_deal, rank_resources
from sparkring.spark_jobs.launch.meeting.encryption import encryption_of, require_plaintext_allowed
from sparkring.spark_jobs.launch.meeting.versions import Versions, other_than_rank, refuses
from sparkring.spark_jobs.spark.settings import is_on, setting
from sparkring.spark_jobs.spark.slots import has_dynamic_allocation, require_on_demand, require_slots
from sparkring.spark_jobs.spark.task_resources import EXECUTOR_AMOUNT, TASK_AMOUNT, TaskResources, profile_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Problems = list[tuple[Status, str, str]]

FEWEST_PORTS = 1000
"""With fewer ephemeral ports a busy machine may run out of them."""
PICKLED = ("numpy", "pyarrow")
"""Values of these packages pass between driver and executors in prepare and score. Ranks only read Parquet."""


def check_settings(spark: SparkSession, needs: Needs) -> Check:
    """Spark properties that keep a ring from starting, or from running well."""
    problems: Problems = []
    on_demand = has_dynamic_allocation(spark)
    if on_demand:
        try:
            require_on_demand(spark, num_ranks=needs.train.num_ranks)
        except SparkringError as refused:
            problems.append(("fail", refused.found, sentence(refused.remedy)))
    elif is_on(spark, "spark.speculation"):
        problems.append(("warn", "spark.speculation is true: tasks of prepare and score may run twice (those of the ring never do)",
                         "Set spark.speculation=false."))
    cpus, threads = int(setting(spark, "spark.task.cpus") or 1), needs.train.ring.threads_per_rank
    if threads > cpus and not needs.local and asked_resources(spark, needs) is None:
        problems.append(("warn", f"spark.task.cpus={cpus}, but a rank has {threads} threads: ranks would share cores",
                         f"Set spark.task.cpus={threads}, or train.ring.threads_per_rank={cpus}."))
    problems += _container_problems(spark, needs)
    allocation = "executors come on demand (spark.dynamicAllocation.enabled)" if on_demand else "no dynamic allocation"
    return verdict("Spark settings", problems, fine=f"{allocation}, no speculation, spark.task.cpus={cpus} for {threads} thread(s) a rank")


def check_slots(spark: SparkSession, needs: Needs) -> Check:
    """Whether Spark can run all ranks at once."""
    require_slots(spark, num_ranks=needs.train.num_ranks, within_s=needs.train.ring.start_timeout_s,
                  resources=asked_resources(spark, needs))
    if has_dynamic_allocation(spark):
        return Check("slots", "ok", f"not known before ranks wait for them; {needs.train.num_ranks} have to come within "
                                    f"train.ring.start_timeout_s, {needs.train.ring.start_timeout_s:g} s")
    return Check("slots", "ok", f"{needs.train.num_ranks} ranks fit at once on {setting(spark, 'spark.master') or 'the Spark server'}")


def asked_resources(spark: SparkSession, needs: Needs) -> TaskResources | None:
    """What the ring's stage asks for; None if nothing, and where it would be refused: the check ``GPU`` says why."""
    try:
        return rank_resources(spark, needs.train.ring)
    except SparkringError:
        return None


def survey_tasks(spark: SparkSession, needs: Needs, *, probe_file: str | None, meet: bool) -> list[TaskReport]:
    """Run one task for each rank, and let it report on its machine.

    Args:
        spark: The session.
        needs: The job's needs.
        probe_file: A file of the driver's for the tasks to look for; None if they need not see it.
        meet: Run all tasks at once, in a barrier stage, and let them try to reach each other.
    """
    from pyspark import cloudpickle

    from sparkring.spark_jobs.spark.versions.profiles import map_in_arrow
    from sparkring.spark_jobs.spark.watched_job import collect_when_started

    num_tasks = needs.train.num_ranks
    cloudpickle.register_pickle_by_value(survey)  # it must answer where sparkring is not installed
    try:
        look, resources = partial(survey.survey_task, probe_file, meet), asked_resources(spark, needs) if meet else None
        frame = map_in_arrow(spark.range(0, num_tasks, 1, num_tasks), look, survey.SCHEMA, barrier=meet,
                             profile=None if resources is None else profile_of(spark, resources))
        rows = collect_when_started(frame, spark, tag=f"sparkring-doctor-{uuid4().hex}", num_tasks=num_tasks,
                                    within_s=needs.train.ring.start_timeout_s, resources=resources)
    except SparkringError as error:
        if "PYTHON_VERSION_MISMATCH" in str(error):
            raise SparkringError("the executors' Python has another minor version than the driver's; point PYSPARK_PYTHON "
                                 "(spark.pyspark.python) at a Python of the same minor version on the executors.") from error
        raise
    finally:
        cloudpickle.unregister_pickle_by_value(survey)
    return [TaskReport.from_json(row["report"]) for row in rows]


def check_executors(reports: Sequence[TaskReport], here: Machine) -> Check:
    """Whether executors have what a ring asks for, and the driver's other packages, and see its workspace."""
    problems: Problems = []
    machines = machines_of(reports)
    for machine in machines:
        problems += _python_problems(machine, here) + _build_problems(machine, machines[0])
        for name in survey.PACKAGES:
            problems += _package_problems(name, machine, here)
    blind = sorted({report.machine.host for report in reports if report.sees_probe is False})
    if blind:
        problems.append(("fail", f"{', '.join(blind)} cannot see the workspace's folder of this machine",
                         "Put the workspace on storage that all machines have mounted at the same path."))
    first = machines[0]
    versions = ", ".join(f"{name} {first.packages[name].get('version')}" for name in ("sparkring", "torch"))
    horovod = first.packages["horovod"]
    fine = f"{len(reports)} task(s) on {', '.join(machine.host for machine in machines)}: Python {first.python}, {versions}"
    return verdict("executors", problems, fine=fine if "error" in horovod else f"{fine}, {describe_horovod(horovod)}")


def check_executor_memory(reports: Sequence[TaskReport], needs: Needs) -> Check:
    """Free memory of each machine against the ranks that would run there."""
    problems: Problems = []
    fine = []
    for machine, ranks in ranks_by_host(reports):
        need_mb, free_mb = needs.memory_mb(ranks), machine.free_memory / MB
        fine.append(f"{free_mb:,.0f} MB free on {machine.host}, {ranks} rank(s) need about {need_mb:,.0f}")
        if free_mb < need_mb:
            problems.append(("fail" if free_mb < need_mb / 2 else "warn", fine[-1],
                             "Use machines with more memory, fewer ranks a machine, or smaller row groups (prepare.row_group_mb)."))
    return verdict("executor memory", problems, fine="; ".join(fine))


def check_network(reports: Sequence[TaskReport], *, port_range: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> Check:
    """Whether the tasks could listen where the ring would, and reach each other there."""
    first, last = map(int, port_range.read_text(encoding="ascii").split())
    advice = (f"Let the executors' machines reach each other on TCP ports {first} to {last}, or name another interface with "
              "spark.executorEnv.HOROVOD_GLOO_IFACE.")
    problems: Problems = [("fail", trouble, advice) for report in reports for trouble in report.trouble]
    if last - first < FEWEST_PORTS:
        problems.append(("warn", f"only the ports {first} to {last} are free to use", "Widen net.ipv4.ip_local_port_range."))
    if any(report.address is None for report in reports) and not problems:
        problems.append(("warn", "not tried, since the tasks did not run all at once", "See the checks `slots` and `Spark settings`."))
    places = sorted({f"{report.address} ({report.interface})" for report in reports})
    return verdict("network", problems, fine=f"{len(reports)} task(s) reach each other at {', '.join(places)}, ports {first} to {last}")


def check_gpu(spark: SparkSession | None, reports: Sequence[TaskReport], needs: Needs, here: Machine) -> Check:
    """The GPUs that ranks would get and torch can use, against ``train.ring.device``."""
    ring, seen = needs.train.ring, here.packages["torch"].get("cuda_devices", 0)
    if ring.device == "cpu":
        return Check("GPU", "ok", f"not asked for (train.ring.device=cpu); {seen} visible here")
    problems: list[tuple[str, str]] = []
    given = ""
    if spark is not None:
        try:
            problems, given = _gpus_given(spark, reports, needs)
        except SparkringError as refused:
            problems.append((refused.found, sentence(refused.remedy)))
    blind = [machine.host for machine in machines_of(reports) if not machine.packages["torch"].get("cuda_devices")]
    if blind:
        problems.append((f"torch sees no GPU on {', '.join(blind)}", "Install the NVIDIA driver there (nvidia-smi must list the GPU)."))
    if not reports:
        problems.append(("the executors' GPUs were not looked at", "See the check `executors`."))
    status: Status = "warn" if ring.allow_cpu_fallback or not reports else "fail"
    if problems:
        problems.append(("the config asks for cuda", "Or train on CPUs: --set train.ring.device=cpu."))
    return verdict("GPU", [(status, found, advice) for found, advice in problems], fine=given)


def _gpus_given(spark: SparkSession, reports: Sequence[TaskReport], needs: Needs) -> tuple[list[tuple[str, str]], str]:
    """What is wrong with the GPUs that ranks would get, as (found, advice), and where they come from.

    Raises:
        EnvironmentProblem: a ring would be refused.
    """
    ring, num_ranks = needs.train.ring, needs.train.num_ranks
    found = gpus_to_deal(spark, ring, num_ranks=num_ranks)
    if found is not None:
        dealt = found[:num_ranks]
        fine = f"{describe(dealt)} for {num_ranks} rank(s)"
        return [] if len(dealt) == num_ranks else [(fine, "Set train.num_ranks to at most the number of GPUs.")], fine
    by = "a resource profile of the ring's stage" if rank_resources(spark, ring) else f"{TASK_AMOUNT}, which holds for every stage"
    given = ", ".join(sorted({gpu for report in reports for gpu in report.gpus}))
    fine = f"{len(reports)} task(s) with GPU {given}, by {by}"
    if all(report.gpus for report in reports):
        return [], fine
    return [("some tasks were given no GPU", f"Set {EXECUTOR_AMOUNT} to the GPUs of a machine, and see the check `slots`.")], fine


def check_encryption(spark: SparkSession, reports: Sequence[TaskReport], needs: Needs) -> Check:
    """Whether Spark's traffic is encrypted while the ring's is not.

    Raises:
        ConfigError: a ring would be refused for that.
    """
    require_plaintext_allowed(spark, needs.train.ring)
    on = encryption_of(spark)
    hosts = {report.machine.host for report in reports}
    if not on:
        return Check("encryption", "ok", "not asked for; the ring's traffic is plain TCP, as Spark's is here")
    if len(hosts) == 1:
        return Check("encryption", "ok", f"{', '.join(on)}; the ring stays on {hosts.pop()}")
    return Check("encryption", "warn", f"{', '.join(on)}, but the ring's traffic between machines (gradients, parameters) is plain TCP",
                 "Let the ring's machines talk over a private or encrypted network only (VPC, WireGuard).")


def machines_of(reports: Sequence[TaskReport]) -> list[Machine]:
    """Each machine once, as reported by the task that looked at its packages."""
    machines = {(report.machine.host, report.machine.executable): report.machine for report in reports if report.machine.packages}
    return [machines[key] for key in sorted(machines)]


def ranks_by_host(reports: Sequence[TaskReport]) -> list[tuple[Machine, int]]:
    """Each machine and the number of tasks on it."""
    counts = Counter(report.machine.host for report in reports)
    machines = {report.machine.host: report.machine for report in reports}
    return [(machines[host], counts[host]) for host in sorted(counts)]


def megabytes(size: str, *, unit: str) -> float:
    """Spark's ``4g``, ``512m`` or, without a unit, a number of ``unit``."""
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", size.lower())
    if match is None:
        raise SparkringError(f"{size!r} is not a size as Spark writes them; write e.g. 4g or 512m.")
    powers = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
    return float(int(match.group(1)) * 1024 ** powers[match.group(2) or unit] / MB)


def _python_problems(machine: Machine, here: Machine) -> Problems:
    if not refuses("python", found=_versions(machine).python, driver=_versions(here).python):
        return []
    return [("fail", f"Python {machine.python} on {machine.host}, {here.python} here",
             "Point PYSPARK_PYTHON (spark.pyspark.python) at a Python of the same minor version on the executors.")]


def _package_problems(name: str, machine: Machine, here: Machine) -> Problems:
    theirs, mine = machine.packages[name], here.packages[name]
    advice = f"Install the driver's {name} for {machine.executable} on every executor, or ship it in the environment's archive."
    if name == "petastorm" and is_missing(name, mine):
        return []  # the driver's job does without it
    if "error" in theirs:
        return [("warn" if name == "petastorm" else "fail", f"{name} cannot be imported on {machine.host}: {theirs['error']}", advice)]
    if name == "horovod" and not theirs["gloo"]:
        return [("fail", f"Horovod on {machine.host} was built without Gloo", advice)]
    if "version" not in mine or theirs["version"] == mine["version"]:
        return []
    found = f"{name} {theirs['version']} on {machine.host}, {mine['version']} here"
    if refuses(name, found=theirs["version"], driver=mine["version"]):
        return [("fail", found, advice)]
    if name in PICKLED and release(theirs["version"])[:1] != release(mine["version"])[:1]:
        found += " (prepare and score may fail)"
    return [] if name == "torch" else [("warn", found, advice)]  # a driver computes nothing, whatever its build of torch


def _build_problems(machine: Machine, first: Machine) -> Problems:
    """Ranks compute the same with one build of torch only."""
    if any("error" in one.packages["torch"] for one in (machine, first)):
        return []
    other = other_than_rank(machine.host, _versions(machine), first.host, _versions(first))
    if other is None:
        return []
    refused = EnvironmentProblem(other)
    return [("fail", refused.found, sentence(refused.remedy))]


def _versions(machine: Machine) -> Versions:
    """Those that a ring compares."""
    return Versions(sparkring=str(machine.packages["sparkring"].get("version")), python=".".join(machine.python.split(".")[:2]),
                    torch=machine.packages["torch"].get("version"))


def _ranks_an_executor(spark: SparkSession, needs: Needs) -> int:
    """How many ranks Spark runs at once in an executor."""
    cores, cpus = (int(setting(spark, key) or 1) for key in ("spark.executor.cores", "spark.task.cpus"))
    asked = asked_resources(spark, needs)
    if asked is None:
        return cores // cpus
    return min(cores // asked.cpus, int(amount_of(spark, EXECUTOR_AMOUNT)))  # a GPU a rank


def _container_problems(spark: SparkSession, needs: Needs) -> Problems:
    """On YARN and Kubernetes a rank shares its executor's container with the JVM's heap; a container that grows too large is killed."""
    if not (setting(spark, "spark.master") or "").startswith(("yarn", "k8s")):
        return []
    heap_mb = megabytes(setting(spark, "spark.executor.memory") or "1g", unit="b")
    given = setting(spark, "spark.executor.memoryOverhead")
    factor = float(setting(spark, "spark.executor.memoryOverheadFactor") or 0.1)
    overhead_mb = megabytes(given, unit="m") if given else max(384 * 1024**2 / MB, factor * heap_mb)
    ranks = max(1, min(_ranks_an_executor(spark, needs), needs.train.num_ranks))
    need_mb = needs.container_mb(ranks)
    if overhead_mb >= need_mb:
        return []
    found = f"an executor's container has {overhead_mb:,.0f} MB beside the JVM's heap, {ranks} rank(s) in it need about {need_mb:,.0f}"
    return [("warn", found, f"Set spark.executor.memoryOverhead={-(-need_mb // 1):.0f}m.")]
