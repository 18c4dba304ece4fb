"""Ask a model on a server a yes-or-no question about texts, through OpenAI's chat completions API."""

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from rljax.errors import InputError
from rljax.rewards.correctness import Failed
from rljax.rewards.reward_call import Progress
from rljax.text import one_line

MOST_CONNECTIONS = 16
"""Maximum number of questions in flight at once."""
SECONDS = 120.0
"""Time limit per question."""
KEY_VARIABLE = "RLJAX_JUDGE_KEY"
"""Name of the environment variable that contains the server's API key."""
QUESTION = "Text:\n\n{text}\n\nQuestion about the text: {question}\nAnswer with yes or no only."


def yes_or_no(
    question: str, url: str, model: str | None = None
) -> Callable[[Sequence[str], Progress | None], list[bool | Failed]]:
    """Make a function that asks a yes-or-no question about each of several texts.

    Args:
        question: a question whose answer is yes or no.
        url: address of the server, such as `http://127.0.0.1:8000`.
        model: name of the model; None selects the first model that the server lists.

    Returns:
        (texts, progress) -> for each text True for yes, False for no, or `Failed` if the server sends neither.

    Raises:
        InputError: the address does not begin with http:// or https://.
    """
    if not url.startswith(("http://", "https://")):
        raise InputError(f"the judge's address is {url!r:.80}; give one such as http://127.0.0.1:8000.")

    def ask_all(texts: Sequence[str], progress: Progress | None) -> list[bool | Failed]:
        key = os.environ.get(KEY_VARIABLE)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        found: list[bool | Failed] = []
        with (
            httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=SECONDS, trust_env=False) as client,
            ThreadPoolExecutor(MOST_CONNECTIONS) as threads,
        ):
            try:
                named = _find_first_model(client) if model is None else model
            except (httpx.HTTPError, LookupError, ValueError, TypeError) as error:
                return [Failed("raised", f"the judge {url}: {one_line(error)}")] * len(texts)
            for verdict in threads.map(
                lambda text: _ask(client, named, QUESTION.format(text=text, question=question)), texts
            ):
                found.append(verdict)
                if progress is not None:
                    progress(len(found), len(texts))
        return found

    return ask_all


def _find_first_model(client: httpx.Client) -> str:
    """Return the name of the first model that the server lists."""
    return client.get("/v1/models").raise_for_status().json()["data"][0]["id"]


def _ask(client: httpx.Client, model: str, content: str) -> bool | Failed:
    """Send one question, and read the answer."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8}
    try:
        answer = (
            client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]["content"]
        )
        word = re.match(r"(yes|no)\b", answer.strip().lower())
    except (httpx.HTTPError, LookupError, ValueError, TypeError, AttributeError) as error:
        return Failed("timed_out" if isinstance(error, httpx.TimeoutException) else "raised", one_line(error))
    if word is not None:
        return word[1] == "yes"
    return Failed("raised", f"the judge answered {answer!r:.80}, not yes or no")
