"""Stories of our own in the form of five bAbI tasks, for examples that run without a download.

People, places, things and animals are other ones than in the bAbI tasks, and so are the rules by
which stories are made up: accuracies on them say nothing about the published tasks.
"""

from __future__ import annotations

from random import Random
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

PEOPLE = ("Alice", "Boris", "Chen", "Dara", "Emre")
PLACES = ("library", "workshop", "orchard", "cellar", "terrace", "pantry")
THINGS = ("lamp", "compass", "violin")
MOVES = ("went", "walked", "ran", "hurried")
ANIMALS = {"otter": "otters", "hawk": "hawks", "fox": "foxes", "snake": "snakes"}
PETS = ("Mila", "Odin", "Pico", "Ruby", "Tofu", "Zora")
DIRECTIONS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


class _Story:
    """The numbered lines of one story."""

    def __init__(self) -> None:
        self.lines: List[str] = []

    def tell(self, sentence: str) -> int:
        """Add a sentence; its number."""
        self.lines.append(f"{len(self.lines) + 1} {sentence}.")
        return len(self.lines)

    def ask(self, question: str, answer: str, supporting: Sequence[int]) -> None:
        """Add a question."""
        facts = " ".join(map(str, supporting))
        self.lines.append(f"{len(self.lines) + 1} {question}?\t{answer}\t{facts}")


class _World:
    """Who is where and has what, as far as the story has told, with the lines that told it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.story = _Story()
        self.place: Dict[str, Tuple[str, int]] = {}
        self.holder: Dict[str, Tuple[str, int]] = {}
        self.left_at: Dict[str, Tuple[str, Tuple[int, int]]] = {}

    def move(self, person: str) -> None:
        """To another place than where the person is."""
        here = self.place.get(person, ("",))[0]
        place = self.random.choice([place for place in PLACES if place != here])
        line = self.story.tell(f"{person} {self.random.choice(MOVES)} to the {place}")
        self.place[person] = place, line

    def act(self, person: str) -> None:
        """Leave a thing, take one or move, where that is possible."""
        held = [thing for thing, (holder, _) in self.holder.items() if holder == person]
        here, moved = self.place.get(person, ("", 0))
        free = [
            thing
            for thing in THINGS
            if thing not in self.holder and self.left_at.get(thing, (here,))[0] == here
        ]
        chance = self.random.random()
        if here and held and chance < 0.25:
            thing = self.random.choice(held)
            line = self.story.tell(f"{person} left the {thing} there")
            del self.holder[thing]
            self.left_at[thing] = here, (line, moved)
        elif here and free and chance < 0.6:
            thing = self.random.choice(free)
            self.left_at.pop(thing, None)
            self.holder[thing] = person, self.story.tell(f"{person} took the {thing}")
        else:
            self.move(person)


def _single_fact(random: Random) -> List[str]:
    world = _World(random)
    for _ in range(5):
        world.move(random.choice(PEOPLE))
        world.move(random.choice(PEOPLE))
        person = random.choice(sorted(world.place))
        place, line = world.place[person]
        world.story.ask(f"Where is {person}", place, [line])
    return world.story.lines


def _two_facts(random: Random) -> List[str]:
    world = _World(random)
    people = random.sample(PEOPLE, 3)
    for _ in range(3):
        for _ in range(4):
            world.act(random.choice(people))
        while not (world.holder or world.left_at):
            world.act(random.choice(people))
        thing = random.choice(sorted({*world.holder, *world.left_at}))
        if thing in world.holder:
            holder, taken = world.holder[thing]
            place, moved = world.place[holder]
            facts = (taken, moved)
        else:
            place, facts = world.left_at[thing]
        world.story.ask(f"Where is the {thing}", place, facts)
    return world.story.lines


def _yes_or_no(random: Random) -> List[str]:
    world = _World(random)
    for _ in range(5):
        world.move(random.choice(PEOPLE))
        world.move(random.choice(PEOPLE))
        person = random.choice(sorted(world.place))
        place, line = world.place[person]
        answer = random.choice(("yes", "no"))
        if answer == "no":
            place = random.choice([other for other in PLACES if other != place])
        world.story.ask(f"Is {person} in the {place}", answer, [line])
    return world.story.lines


def _deduction(random: Random) -> List[str]:
    story = _Story()
    kinds = random.sample(sorted(ANIMALS), 4)
    feared = dict(zip(kinds, kinds[1:] + kinds[:1]))
    pets = dict(zip(random.sample(PETS, 4), kinds))
    facts = [("fear", kind) for kind in kinds] + [("pet", name) for name in pets]
    random.shuffle(facts)
    told = {}
    for fact, name in facts:
        if fact == "fear":
            sentence = f"{ANIMALS[name].capitalize()} are afraid of {ANIMALS[feared[name]]}"
        else:
            article = "an" if pets[name][0] in "aeiou" else "a"
            sentence = f"{name} is {article} {pets[name]}"
        told[name] = story.tell(sentence)
    for name in random.sample(sorted(pets), 4):
        story.ask(f"What is {name} afraid of", feared[pets[name]], [told[name], told[pets[name]]])
    return story.lines


def _paths(random: Random) -> List[str]:
    story = _Story()
    places = random.sample(PLACES, 6)
    at = {(0, 0): places[0]}
    links: List[Tuple[str, str, str]] = []  # from, direction, to
    for place in places[1:]:
        x, y, direction = random.choice(
            [
                (x, y, direction)
                for x, y in at
                for direction, (dx, dy) in DIRECTIONS.items()
                if (x + dx, y + dy) not in at
            ]
        )
        links.append((at[x, y], direction, place))
        dx, dy = DIRECTIONS[direction]
        at[x + dx, y + dy] = place
    random.shuffle(links)
    ways: Dict[str, List[Tuple[str, str, int]]] = {place: [] for place in places}
    for start, direction, end in links:
        if random.random() < 0.5:
            line = story.tell(f"The {end} is {direction} of the {start}")
        else:
            line = story.tell(f"The {start} is {OPPOSITE[direction]} of the {end}")
        ways[start].append((direction, end, line))
        ways[end].append((OPPOSITE[direction], start, line))
    # The links make a tree: the way is the only one without a return.
    start, (first, _, line), (second, end, other) = random.choice(
        [
            (start, one, two)
            for start in places
            for one in ways[start]
            for two in ways[one[1]]
            if two[1] != start
        ]
    )
    story.ask(
        f"How do you go from the {start} to the {end}", f"{first[0]},{second[0]}", [line, other]
    )
    return story.lines


STORIES: Dict[int, Callable[[Random], List[str]]] = {
    1: _single_fact,
    2: _two_facts,
    6: _yes_or_no,
    15: _deduction,
    19: _paths,
}
"""By the number of the bAbI task that a kind of story is like."""


def generate(task: int, questions: int, seed: int, split: str = "train") -> Iterator[str]:
    """Lines of a bAbI file: stories, until there are so many questions.

    Args:
        task: one of :data:`STORIES`.
        questions: how many.
        seed: the same seed, task and split give the same lines.
        split: train, test, ...

    Raises:
        ValueError: there is no such task.
    """
    if task not in STORIES:
        raise ValueError(
            f"no stories for task {task}, choose one of {', '.join(map(str, STORIES))}"
        )
    random = Random(f"{seed} {task} {split}")
    while questions > 0:
        for line in STORIES[task](random):
            yield line
            questions -= "\t" in line
            if not questions:
                break
