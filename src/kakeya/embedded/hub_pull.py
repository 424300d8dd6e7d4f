"""A model from the Hugging Face Hub, or what speaks like it, into the Hugging Face cache."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from kakeya.config.hub import HubLimits
from kakeya.embedded.hub_cache import hub_home, repo_folder
from kakeya.embedded.hub_fetch import Pause, Report, demand_given, fetch_file, part_of
from kakeya.embedded.hub_files import RepoFile, RepoList, read_list
from kakeya.errors import Refused, demand

ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Puller:
    """What a pull is given.  look: is shown the folder before the weights come, and may refuse."""

    client: httpx2.Client
    env: Mapping[str, str]
    report: Report
    pause: Pause
    look: Callable[[Path], object] = lambda folder: None
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    limits: HubLimits = field(default_factory=HubLimits)


def open_client(env: Mapping[str, str], limits: HubLimits) -> httpx2.Client:
    """A client with the user's token; to be closed.  Redirects to other servers go without it."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "kakeya"}
    token = token_of(env)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.Client(headers=headers, timeout=limits.timeout_s, follow_redirects=True)


def endpoint_of(env: Mapping[str, str]) -> str:
    """HF_ENDPOINT, else the Hub.  Raises Refused(INVALID_ARGUMENT)."""
    endpoint = env.get("HF_ENDPOINT") or ENDPOINT
    demand(
        endpoint.startswith(("https://", "http://")),
        "INVALID_ARGUMENT",
        f"HF_ENDPOINT is {endpoint!r}, it must begin with https:// or http://",
    )
    return endpoint.rstrip("/")


def token_of(env: Mapping[str, str]) -> str:
    """HF_TOKEN, else the file that `hf auth login` leaves; "" without."""
    given = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")
    if given is None:
        kept = env.get("HF_TOKEN_PATH")
        path = Path(kept).expanduser() if kept else hub_home(env) / "token"
        try:
            given = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            given = ""
    token = given.strip()
    demand(
        token.isascii() and token.isprintable() and len(token) < 4096,
        "INVALID_ARGUMENT",
        "HF_TOKEN is no token: it must be one line of ASCII",
    )
    return token


def pull_repo(repo: str, puller: Puller) -> Path:
    """The snapshot of the repository's `main`, whole.

    Raises Refused: NOT_FOUND, UNAVAILABLE, FAILED_PRECONDITION (no disk, no weights), DATA_LOSS,
    and what `puller.look` raises.  What came is kept, and the next pull goes on from there.
    """
    folder = repo_folder(puller.env, repo)
    with _written(), _alone(folder, repo):
        listed = ask_list(repo, puller)
        blobs, snapshot = folder / "blobs", folder / "snapshots" / listed.commit
        for made in (blobs, snapshot, folder / "refs"):
            made.mkdir(parents=True, exist_ok=True)
        missing = [file for file in listed.files if not _is_here(blobs, file)]
        demand_disk(missing, blobs, puller)
        has_looked = False
        for file in listed.files:
            if file.is_weights and not has_looked:
                puller.look(snapshot)
                has_looked = True
            if file in missing:
                _fetch(repo, listed, file, blobs, puller)
            _link(snapshot / file.name, file)
        _write(folder / "refs" / "main", listed.commit)
    return snapshot


def ask_list(repo: str, puller: Puller) -> RepoList:
    """The files of `main`.  Raises Refused."""
    url = f"{endpoint_of(puller.env)}/api/models/{repo}/revision/main"
    limit, body = puller.limits.max_list_bytes, bytearray()
    try:
        with puller.client.stream("GET", url, params={"blobs": "true"}) as response:
            demand_given(response, f"the model {repo}")
            host, status = response.url.host, response.status_code
            demand(status == 200, "UNAVAILABLE", f"{host} answered {status} for {repo}")
            for chunk in response.iter_raw():
                body += chunk
                demand(
                    len(body) <= limit,
                    "RESOURCE_EXHAUSTED",
                    f"the server's list of {repo} is longer than {limit} bytes",
                )
    except (httpx2.RequestError, httpx2.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise Refused("UNAVAILABLE", f"{endpoint_of(puller.env)} is not reached: {why}") from None
    return read_list(repo, bytes(body), puller.limits)


def demand_disk(missing: list[RepoFile], blobs: Path, puller: Puller) -> None:
    """Raise Refused(FAILED_PRECONDITION) where what is still to come does not fit the disk."""
    needed = sum(file.num_bytes - _num_here(blobs, file) for file in missing)
    needed += puller.limits.spare_disk_bytes if missing else 0
    free = puller.free_bytes(blobs)
    demand(
        needed <= free,
        "FAILED_PRECONDITION",
        f"the model needs {needed} bytes more of disk in the cache, {free} are free",
    )


def _fetch(repo: str, listed: RepoList, file: RepoFile, blobs: Path, puller: Puller) -> None:
    url = f"{endpoint_of(puller.env)}/{repo}/resolve/{listed.commit}/{file.name}"
    fetch_file(
        puller.client,
        url,
        file,
        blobs / file.hash,
        limits=puller.limits,
        report=puller.report,
        pause=puller.pause,
    )


def _is_here(blobs: Path, file: RepoFile) -> bool:
    path = blobs / file.hash
    return path.is_file() and path.stat().st_size == file.num_bytes


def _num_here(blobs: Path, file: RepoFile) -> int:
    part = part_of(blobs / file.hash)
    return min(part.stat().st_size, file.num_bytes) if part.is_file() else 0


def _link(place: Path, file: RepoFile) -> None:
    target = Path("..", "..", "blobs", file.hash)
    if place.is_symlink() and place.readlink() == target:
        return
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text)
    aside.replace(path)


@contextmanager
def _written() -> Iterator[None]:
    """What the disk refuses in here, as Refused."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Refused("FAILED_PRECONDITION", f"the cache cannot be written: {why}") from None


@contextmanager
def _alone(folder: Path, repo: str) -> Iterator[None]:
    """One process at a time fetches a repository."""
    locks = folder.parent / ".locks" / folder.name
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / "kakeya.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("UNAVAILABLE", f"another process is fetching {repo}") from None
        yield


__all__ = ["Puller", "endpoint_of", "open_client", "pull_repo", "token_of"]
