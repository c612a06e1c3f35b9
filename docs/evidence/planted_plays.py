"""Write plays of a travel team in which one of eight faults is planted, or none, with labels of what was planted.

    python docs/evidence/planted_plays.py plays.jsonl [--plays 96] [--seed 0]

Prints what the coach `evidence` says of them.

A planner, a researcher with a look-up tool, a calculator, and a writer with a booking tool plan a trip. Names of
places, prices, nights, and the ways in which things are said are drawn anew for each play. A third of the plays have no
fault. The lines are conversations of OpenAI's form with `mistake_agent` and `mistake_step`, as `mappa import --format
who-and-when` and `mappa coach eval --on who-and-when` read them; `planted` names the fault.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from unseen_blame import build_plays, measure, show

FAULTS = (
    "wrong sum",
    "other price",
    "other total",
    "claimed booking",
    "wrong state",
    "wrong name",
    "wrong argument",
    "tool down",
)
CITIES = ("Lisbon", "Kyoto", "Bergen", "Tallinn", "Porto", "Cusco", "Hanoi", "Ghent", "Riga", "Quito")
HOTELS = ("Astor", "Meridian", "Casa Flora", "Old Mill", "Harbour Inn", "Linden", "Belvedere", "Silver Pine")
TOURS = ("river cruise", "castle tour", "food walk", "night market tour", "wine tasting", "museum pass")


class Play:
    """One conversation, written line by line."""

    def __init__(self, number: int, random: Random) -> None:
        self.random = random
        self.number = number
        self.city = random.choice(CITIES)
        self.hotel = random.choice(HOTELS)
        self.tour = random.choice(TOURS)
        self.nights = random.randint(2, 7)
        self.people = random.randint(2, 5)
        self.flight = random.randint(90, 480)
        self.rate = random.randint(60, 260)
        self.ticket = random.randint(15, 95)
        self.total = self.flight * self.people + self.rate * self.nights + self.ticket * self.people
        self.task = (
            f"Plan a trip to {self.city} for {self.people} people and {self.nights} nights: one room, flights, and a "
            f"{self.tour} for each of them. Book the hotel and give the total in euros."
        )
        self.history: list[dict[str, Any]] = [{"role": "user", "name": "user", "content": self.task}]
        self.mistake: tuple[str, int] | None = None
        self.calls = 0

    def pick(self, *ways: str) -> str:
        return self.random.choice(ways)

    def say(self, agent: str, text: str, *, fault: bool = False) -> None:
        if fault:
            self.mistake = agent, len(self.history)
        self.history.append({"role": "assistant", "name": agent, "content": text})

    def call(
        self, agent: str, text: str, tool: str, arguments: dict[str, Any], answer: Any, *, fault: bool = False
    ) -> None:
        if fault:
            self.mistake = agent, len(self.history)
        self.calls += 1
        call = {"id": f"call-{self.number}-{self.calls}", "type": "function"}
        call["function"] = {"name": tool, "arguments": json.dumps(arguments)}  # type: ignore[assignment]
        self.history.append({"role": "assistant", "name": agent, "content": text, "tool_calls": [call]})
        content = answer if isinstance(answer, str) else json.dumps(answer)
        self.history.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    def line(self, fault: str | None) -> dict[str, Any]:
        line: dict[str, Any] = {
            "source": f"travel/{self.number:03d}",
            "question": self.task,
            "question_ID": f"travel-{self.number:03d}",
            "planted": fault or "none",
            "history": self.history,
        }
        if self.mistake is not None:
            line |= {"mistake_agent": self.mistake[0], "mistake_step": str(self.mistake[1]), "is_correct": False}
        return line


def write_play(number: int, fault: str | None, random: Random) -> dict[str, Any]:
    """A play with one fault, or without."""
    play = Play(number, random)
    _plan(play, fault)
    if _research(play, fault):
        _calculate(play, fault)
        _book(play, fault)
    return play.line(fault)


def _plan(play: Play, fault: str | None) -> None:
    wrong = fault == "wrong name"
    hotel = f"Grand {play.random.choice(('Palace', 'Regent', 'Plaza'))}" if wrong else play.hotel
    play.say(
        "planner",
        play.pick(
            f"Researcher: look up flights to {play.city}, the hotel {hotel}, and the {play.tour}. Then we add it up.",
            f"1. Find the fare to {play.city}.\n2. Find the rate of {hotel}.\n3. Find the price of the {play.tour}.\n"
            "4. Sum up and book.",
            f"We need three prices: the flight to {play.city}, {hotel} per night, and the {play.tour}.",
        ),
        fault=wrong,
    )
    play.planned = hotel  # type: ignore[attr-defined]


def _research(play: Play, fault: str | None) -> bool:
    """Look everything up; whether the work can go on."""
    hotel = play.planned  # type: ignore[attr-defined]
    route = {"destination": play.city, "fare_per_person": play.flight, "currency": "EUR", "status": "available"}
    play.call("researcher", play.pick("Looking up the fare.", ""), "search_flights", {"destination": play.city}, route)
    if fault == "tool down":
        error = play.pick("Error: request timed out after 30 s", '{"error": "service unavailable", "code": 503}')
        play.call("researcher", "Now the hotel.", "get_hotel", {"name": hotel}, error, fault=True)
        play.call("researcher", "Once more.", "get_hotel", {"name": hotel}, error)
        play.say(
            "researcher",
            play.pick("The hotel service does not answer, so I have no rate.", "I could not get the rate."),
        )
        play.say("writer", "I cannot give a total, as the rate of the hotel is missing.")
        return False
    if fault == "wrong name":
        error = play.pick(f"Error: no hotel named {hotel}", f'{{"error": "hotel not found: {hotel}"}}')
        play.call("researcher", "Now the hotel.", "get_hotel", {"name": hotel}, error)
        play.say("researcher", f"There is no {hotel} in the system.")
        play.say("writer", "I cannot give a total, as the hotel was not found.")
        return False
    if fault == "wrong argument":
        missing = play.random.choice((("city", "nights"), ("hotel_name", "name")))
        error = play.pick(
            f"Error: missing required argument '{missing[1]}'",
            f'{{"status": "error", "message": "unexpected argument {missing[0]}; {missing[1]} is required"}}',
        )
        play.call("researcher", "Now the hotel.", "get_hotel", {missing[0]: hotel}, error, fault=True)
        play.say("researcher", play.pick("I did not get the rate of the hotel.", "The hotel look-up gave nothing."))
        play.say("writer", "I cannot give a total, as the rate of the hotel is missing.")
        return False
    others = [name for name in HOTELS if name != hotel]
    rooms = [
        {"name": hotel, "price_per_night": play.rate, "currency": "EUR", "rooms_left": play.random.randint(1, 9)},
        {
            "name": play.random.choice(others),
            "price_per_night": play.rate + play.random.randint(11, 60),
            "currency": "EUR",
        },
    ]
    play.call("researcher", play.pick("Now the hotel.", ""), "get_hotel", {"name": hotel}, {"hotels": rooms})
    tour = {"tour": play.tour, "price_per_person": play.ticket, "currency": "EUR"}
    play.call("researcher", play.pick("And the tour.", ""), "get_tour", {"name": play.tour}, tour)
    if fault == "other price":
        other = play.rate + play.random.choice((-1, 1)) * play.random.randint(7, 41)
        play.flawed = other  # type: ignore[attr-defined]
        text = play.pick(
            f"{hotel} has a price of {other} EUR per night, the flight is {play.flight}, the tour {play.ticket}.",
            f"Found:\n- {hotel}: {other} EUR per night\n- flight: {play.flight} EUR\n- {play.tour}: {play.ticket} EUR",
        )
    else:
        text = play.pick(
            f"{hotel} has a price of {play.rate} EUR per night, the flight is {play.flight}, the tour {play.ticket}.",
            f"Found:\n- {hotel}: {play.rate} EUR per night\n- flight: {play.flight}\n- {play.tour}: {play.ticket}",
            "All three prices are above.",
        )
    play.say("researcher", text, fault=fault == "other price")
    return True


def _calculate(play: Play, fault: str | None) -> None:
    rate = getattr(play, "flawed", play.rate)
    total = play.flight * play.people + rate * play.nights + play.ticket * play.people
    play.total = total
    if fault == "wrong sum":
        play.total = total + play.random.choice((-100, 100, 10, -10, 63, -27))
    flights, room, tours = play.flight * play.people, rate * play.nights, play.ticket * play.people
    text = play.pick(
        f"{play.people} * {play.flight} + {play.nights} * {rate} + {play.people} * {play.ticket} = {play.total}",
        f"Flights: {play.people} × {play.flight} = {flights} EUR.\n"
        f"Hotel: {play.nights} nights × {rate} EUR/night = {room} EUR.\n"
        f"Tours: {play.people} × {play.ticket} = {tours} EUR.\nTotal: {flights} + {room} + {tours} = {play.total} EUR.",
        f"Flights cost {play.people} x {play.flight} = {flights}, the room {play.nights} x {rate} = {room}, the tours "
        f"{play.people} x {play.ticket} = {tours}; {flights} + {room} + {tours} is {play.total}.",
        f"\\[ {play.people} \\times {play.flight} + {play.nights} \\times {rate} + {play.people} \\times "
        f"{play.ticket} = {play.total} \\]",
    )
    play.say("calculator", text, fault=fault == "wrong sum")


def _book(play: Play, fault: str | None) -> None:
    total = play.total
    arguments = {"hotel": play.hotel, "nights": play.nights}
    booking = {"hotel": play.hotel, "nights": play.nights, "status": "confirmed", "reference": f"R{play.number:04d}X"}
    if fault == "claimed booking":
        error = play.pick(
            "Error: card was declined", '{"error": "payment service unavailable"}', "HTTP 500 Internal Server Error"
        )
        play.call("writer", "I book the hotel.", "book_hotel", arguments, error)
        text = play.pick(
            f"Everything is booked: {play.hotel}, {play.nights} nights. The total is {total} EUR.",
            f"Your hotel has been booked successfully. Total: {total} EUR.",
        )
        play.say("writer", text, fault=True)
        return
    if fault == "wrong state":
        booking["status"] = play.pick("pending", "failed", "declined")
        play.call("writer", "I book the hotel.", "book_hotel", arguments, booking)
        text = play.pick(
            f"{play.hotel} is confirmed for {play.nights} nights. The total is {total} EUR.",
            f"Your stay at {play.hotel} is booked. Total: {total} EUR.",
        )
        play.say("writer", text, fault=True)
        return
    play.call("writer", play.pick("I book the hotel.", ""), "book_hotel", arguments, booking)
    if fault == "other total":
        total += play.random.choice((-1, 1)) * play.random.randint(113, 997)
    text = play.pick(
        f"Your trip to {play.city} is planned: {play.hotel}, {play.nights} nights, and the {play.tour}. "
        f"The total is {total} EUR.",
        f"Booked: {play.hotel} for {play.nights} nights (reference R{play.number:04d}X). Total cost: {total} EUR.",
        f"All set for {play.city}! The total for {play.people} people comes to {total} EUR.",
    )
    play.say("writer", text, fault=fault == "other total")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--plays", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    random = Random(chosen.seed)
    plays = []
    for number in range(chosen.plays):
        fault = None if number % 3 == 2 else FAULTS[(number - number // 3) % len(FAULTS)]
        plays.append(write_play(number, fault, random))
    chosen.out.write_text("".join(json.dumps(play) + "\n" for play in plays), encoding="utf-8")
    print(f"{chosen.out}: {len(plays)} plays, {sum(play['planted'] == 'none' for play in plays)} without a fault")
    lines = [
        (
            {**play, "number": number},
            int(play["mistake_step"]) if "mistake_step" in play else None,
            "mistake_step" not in play,
        )
        for number, play in enumerate(plays)
    ]
    with TemporaryDirectory() as scratch:
        show("the coach `evidence` on them", measure(build_plays(lines, Path(scratch))))


if __name__ == "__main__":
    main()
