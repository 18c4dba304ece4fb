r"""Sample answers that are right or wrong by construction, and put them into responses, without using the code under test."""

import random

from grading.reference_kinds import Rewrite

ANSWER_TEMPLATES = (
    *(
        r"So it is $\boxed{{{}}}$.",
        r"\[ \boxed{{{}}} \]",
        "<answer>{}</answer>",
        "so\n#### {}",
        "The answer is {}.",
        "**Answer:** {}",
    ),
    *(
        r"The final answer is: $\boxed{{{}}}$",
        r"\boxed{{ {} }}",
        r"$\boxed{{17}}$ was a guess. No: $\boxed{{{}}}$",
        "Answer: ${}$",
    ),
)


def cases(references: list[str], rewrites: dict[str, Rewrite], count: int, seed: int) -> list[tuple[str, str, str]]:
    """Sample distinct triples (name of the rewrite, reference, answer), about equally many per rewrite."""
    rng = random.Random(seed)
    pool: dict[str, list[tuple[str, str, str]]] = {name: [] for name in rewrites}
    for reference in dict.fromkeys(references):
        for name, rewrite in rewrites.items():
            answer = rewrite(reference, rng)
            if answer is not None and answer != reference:
                pool[name].append((name, reference, answer))
    for answers in pool.values():
        rng.shuffle(answers)
    sampled: list[tuple[str, str, str]] = []
    while len(sampled) < count and any(pool.values()):
        sampled += [answers.pop() for answers in pool.values() if answers]
    return sampled[:count]


def completion(answer: str, rng: random.Random) -> str:
    """Write a response that states the answer. An answer that could be cut short or misread without a box is always put in one."""
    template = rng.choice(ANSWER_TEMPLATES)
    fragile = ". " in answer or "\n" in answer or "#" in answer or answer.startswith("-") or "$" in answer
    return (ANSWER_TEMPLATES[0] if fragile else template).format(answer)
