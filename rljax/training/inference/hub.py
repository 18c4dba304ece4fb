"""Uploads of model folders to the Hugging Face hub."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rljax.errors import InputError
from rljax.text import one_line


@runtime_checkable
class Client(Protocol):
    """The methods of `huggingface_hub.HfApi` that an upload needs."""

    def whoami(self) -> Any:
        """Say whose token is in use; raise if there is none."""
        ...

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """Make a repository."""
        ...

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any:
        """Upload the files of a folder in one commit."""
        ...


def check_push(repository: str, client: Client | None = None) -> Client:
    """Find out whether an upload can work, before any model is read.

    Args:
        repository: OWNER/NAME.
        client: in place of `huggingface_hub.HfApi()`.

    Returns:
        The client.

    Raises:
        InputError: the name is not OWNER/NAME, huggingface-hub is not installed, there is no token, or the hub refuses it.
    """
    parts = repository.split("/")
    if len(parts) != 2 or not all(parts):
        raise InputError(
            f"the repository {repository!r} has to be OWNER/NAME; the owner is you or an organisation of yours."
        )
    if client is None:
        try:
            from huggingface_hub import HfApi, get_token  # noqa: PLC0415  only a push needs it
        except ImportError as error:
            raise InputError("--push needs the package huggingface-hub; run `pip install huggingface-hub`.") from error
        if get_token() is None:
            raise InputError(
                f"there is no token of the Hugging Face hub, so nothing can be pushed to {repository!r}; run `hf auth login`, or "
                "set HF_TOKEN to a token with write access."
            )
        client = HfApi()
    try:
        client.whoami()
    except Exception as error:  # of the network, or of the hub
        raise InputError(
            f"the Hugging Face hub does not accept the token ({one_line(error)}); check it and the network."
        ) from error
    return client


def push_folder(client: Client, folder: Path, repository: str, *, private: bool) -> None:
    """Upload a model's folder; a repository that does not exist yet is made.

    Raises:
        InputError: the hub refuses; the folder stays.
    """
    try:
        client.create_repo(repository, private=private, exist_ok=True)
        client.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload model from rljax")
    except Exception as error:  # of the network, or of the hub
        raise InputError(
            f"{str(folder)!r} could not be pushed to {repository!r} ({one_line(error)}); the folder is complete, so push it again "
            f"with `hf upload {repository} {folder}`."
        ) from error
