"""Tasks on the forum, for its moderator."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from agentgym_envs.webarena.sites.accounts import MODERATOR
from agentgym_envs.webarena.sites.tenants import START
from agentgym_envs.webarena.templates.common import (
    Data,
    Fields,
    Row,
    Rows,
    Step,
    Template,
    all_of,
    balanced,
    click,
    date,
    day,
    enter,
    form,
    given,
    number,
    only,
    rows_are,
    state,
    stop,
    text,
    texts,
)

SITES = ("reddit",)
_NOW = datetime.fromtimestamp(START, UTC).strftime("%Y-%m-%d %H:%M:%S")

# ---- what fills the slots ------------------------------------------------------------------------------


def forums(data: Data) -> list[Row]:
    """Forums, with the way to their pages."""
    rows = data("reddit", "forums")
    return [row | {"forum": row["name"], "path": f"/forum/{row['slug']}-{row['id']}"} for row in rows]


def written_last(data: Data) -> Iterator[Row]:
    """Forums with one latest post, and who wrote it."""
    posts: dict[str, list[Row]] = {}
    for post in data("reddit", "posts"):
        posts.setdefault(post["forum"], []).append(post)
    for row in forums(data):
        *_, before, last = posts[row["name"]]
        if before["created"] < last["created"]:  # of two at the same time the site may name either
            yield row | {"latest": last["account"]}


def topics(data: Data) -> list[Row]:
    """Topics with their posts and the people in them."""
    members = {row["account"]: row for row in data("reddit", "members")}
    started: dict[str, int] = {}
    listed = data("reddit", "topics")
    for row in listed:
        started[row["account"]] = started.get(row["account"], 0) + 1
    posts: dict[int, list[Row]] = {}
    for post in data("reddit", "posts"):
        posts.setdefault(post["topic"], []).append(post)
    paths = {row["name"]: row["path"] for row in forums(data)}
    rows = []
    for row in listed:
        own = posts[row["id"]]
        starter = members[row["account"]]
        row |= {"day": day(row["created"]), "path": f"{paths[row['forum']]}/topic/{row['slug']}-{row['id']}"}
        row |= {"replies": row["posts"] - 1, "last": own[-1]["account"], "opening": own[0]["id"]}
        row |= {"member": starter["id"], "member_posts": starter["posts"], "member_topics": started[row["account"]]}
        row |= {"town": starter["signature"].removeprefix("Greetings from "), "own": own}
        rows.append(row)
    rows.sort(key=lambda row: (row["id"] * 37 % 101, row["id"]))  # not forum by forum
    return rows


def discussions(data: Data) -> Iterator[Row]:
    """Topics with a few people who replied, none of them more than once."""
    for row in topics(data):
        people = [post["account"] for post in row["own"][1:]]
        if 2 <= len(people) <= 5 and len(set(people)) == len(people):
            yield row | {"people": texts(people), "shown": "; ".join(people)}


def leading(data: Data, key: str, margin: int = 1) -> Iterator[Row]:
    """Forums and the topic that has the most of something, by a margin (a look at a topic is a view more)."""
    groups: dict[str, list[Row]] = {}
    for row in topics(data):
        groups.setdefault(row["forum"], []).append(row)
    for rows in groups.values():
        best = sorted(rows, key=lambda row: row[key])[-2:]
        if len(rows) <= 20 and best[1][key] - best[0][key] >= margin:
            yield best[1]


def searches(data: Data) -> Iterator[Row]:
    """Words and how many posts the search finds."""
    posts = data("reddit", "posts")
    for word in _WORDS:
        found = sum(
            word.lower() in post["subject"].lower() or word.lower() in post["content"].lower() for post in posts
        )
        yield {"word": word, "count": found}


def polls(data: Data) -> Iterator[Row]:
    """Topics with polls, and an option that the moderator can vote for."""
    listed = {row["id"]: row for row in topics(data)}
    options: dict[int, list[Row]] = {}
    for row in data("reddit", "polls"):
        options.setdefault(row["topic"], []).append(row)
    for place, (topic, rows) in enumerate(options.items()):
        voters = [account for row in rows for account in row["votes"]]
        if MODERATOR not in voters and listed[topic]["status"] == "open":
            chosen = rows[place % len(rows)]
            yield listed[topic] | {"votes": len(voters), "option": chosen["option"], "option_id": chosen["id"]}


def plain(data: Data) -> list[Row]:
    """Ordinary topics that are open."""
    return [row for row in topics(data) if row["status"] == "open" and row["type"] == "normal" and row["approved"]]


def locked(data: Data) -> list[Row]:
    """Locked topics, and the other ones."""
    rows = [row for row in topics(data) if row["status"] == "locked"]
    return [
        row | {"others": [{"id": other} for other in sorted(item["id"] for item in rows if item is not row)]}
        for row in rows
    ]


def to_lock(data: Data) -> list[Row]:
    """Open topics, and which topics are locked once this one is."""
    shut = [row["id"] for row in topics(data) if row["status"] == "locked"]
    return [row | {"locked": [{"id": key} for key in sorted([*shut, row["id"]])]} for row in plain(data)[40:]]


def to_raise(data: Data) -> list[Row]:
    """Ordinary topics, and which topics are sticky once this one is."""
    up = [row["id"] for row in topics(data) if row["type"] == "sticky"]
    return [row | {"sticky": [{"id": key} for key in sorted([*up, row["id"]])]} for row in plain(data)[80:]]


def to_move(data: Data) -> Iterator[Row]:
    """Topics and another forum for each."""
    names = [row["name"] for row in forums(data)]
    for place, row in enumerate(plain(data)[120:]):
        other = names[(names.index(row["forum"]) + 1 + place % 9) % len(names)]
        yield row | {"other": other}


def to_delete(data: Data) -> list[Row]:
    """Topics, and how many there are without this one."""
    count = len(topics(data))
    return [row | {"left": count - 1} for row in plain(data)[160:]]


def replied(data: Data) -> list[Row]:
    """Topics and a reply to each."""
    return [row | {"text": text_} for row, text_ in zip(plain(data)[3::31], _REPLIES, strict=False)]


def to_start(data: Data) -> list[Row]:
    """Forums and a topic to be started in each."""
    return [row | {"subject": subject, "text": text_} for row, (subject, text_) in
            zip(forums(data)[2::4], _TOPICS, strict=False)]  # fmt: skip


def mended(data: Data) -> list[Row]:
    """Topics whose opening post is to be replaced."""
    return [row | {"text": text_} for row, text_ in zip(plain(data)[11::43], _TEXTS, strict=False)]


_WORDS = ("rhyme", "sourdough", "backups", "panniers", "kestrel", "old maps", "glaze", "torx", "latency")
_REPLIES = (
    "Try it with rain water, that helped here.",
    "Mine is from 1962 and still in use.",
    "Count me in for next time.",
    "The library has a good book about it.",
    "I gave up after the third attempt, to be honest.",
    "Please tell us how it went.",
    "There is a shop in Duluth that sells the parts.",
    "Photographs would help.",
)
_TOPICS = (
    ("Swapping spare seedlings", "I have a tray too many. Who would like some?"),
    ("Meeting on Saturday", "Shall we meet at the library at ten?"),
    ("A word of thanks", "Thank you all for the advice of last week."),
    ("Lost and found", "Somebody left a blue scarf behind."),
    ("Looking for a partner", "I would like to practise twice a week."),
    ("Tools to lend", "My workshop is open on Thursday evenings."),
    ("Bring a friend", "Guests are welcome in April."),
)
_TEXTS = (
    "This has been settled, thank you all.",
    "The author asked us to remove the text.",
    "Moved to the wiki, see there.",
    "Please read the house rules before you post.",
    "Summary: patience, and a sharper blade.",
    "Closed for the winter. See you in spring.",
    "Edited: the prices were out of date.",
)
_SIGNATURES = (
    "Be kind in the first line.",
    "Away until the first of April.",
    "Questions about moderation? Write to me.",
    "Tea before topics.",
    "Reads everything, answers some of it.",
    "Moderating since 2021.",
)

# ---- what is often done --------------------------------------------------------------------------------

FORUM = "heading '{forum}' level: 1"
TOPIC = "heading '{subject}' level: 1"
TO_FORUM = [click("link '{forum}'")]
TO_TOPIC = [*TO_FORUM, click("link '{subject}'", FORUM)]
SURE = "button 'Yes, I\\'m sure'"


def in_forum(name: str, intent: str, rows: Rows, line: str, said: str, answer: Fields) -> Template:
    """Something that the list of a forum's topics says."""
    return Template(name, SITES, intent, rows, [*TO_FORUM, stop(said, FORUM, line)], answer)


def of_starter(name: str, intent: str, line: str, said: str, answer: Fields) -> Template:
    """Something that the profile of the member says who started a topic."""
    plan = [
        *TO_FORUM,
        click("link '{subject}' + link '{account}'", FORUM),
        stop(said, "heading '{account} profile' level: 1", line),
    ]
    return Template(name, SITES, intent, topics, plan, answer)


def moderate(name: str, intent: str, rows: Rows, link: str, heading: str, end: Step, state: list[Fields]) -> Template:
    """Something that a topic's menu has for moderators."""
    plan = [
        *TO_TOPIC,
        click("link 'Subscribe' » button expanded: false", TOPIC),
        click(f"link '{link}'", TOPIC),
        click(SURE, f"heading '{heading}'"),
        end,
    ]
    return Template(name, SITES, intent, rows, plan, state=state)


def ids(condition: str, slot: str) -> Fields:
    """Which topics are so."""
    return rows_are("reddit", f"SELECT id FROM forum_conversation_topic WHERE {condition} ORDER BY id", slot)


TEMPLATES = (
    Template(
        "topics_of_forum",
        SITES,
        'How many topics does the forum "{name}" have? Answer with the number.',
        forums,
        [
            click("link 'Commonroom'"),
            stop("{topics}", "link '{name}' + StaticText * + StaticText '{topics}'", "link 'Mark forums read'"),
        ],
        number("{topics}", "topic"),
    ),
    Template(
        "posts_of_forum",
        SITES,
        'How many posts does the forum "{name}" have? Answer with the number.',
        forums,
        [
            click("link 'Commonroom'"),
            stop(
                "{posts}",
                "link '{name}' + StaticText * + StaticText * + StaticText '{posts}'",
                "link 'Mark forums read'",
            ),
        ],
        number("{posts}", "post"),
    ),
    Template(
        "latest_post_of_forum",
        SITES,
        'Which member wrote the latest post in the forum "{name}"? Answer with the name of the account.',
        written_last,
        [
            click("link 'Commonroom'"),
            stop("{latest}", "link '{name}' + link * + link '{latest}'", "link 'Mark forums read'"),
        ],
        text("{latest}"),
    ),
    in_forum(
        "author_of_topic",
        'Which member started the topic "{subject}" in the forum "{forum}"? Answer with the name of the account.',
        topics,
        "link '{subject}' + link '{account}'",
        "{account}",
        text("{account}"),
    ),
    in_forum(
        "last_reply_to_topic",
        'Which member wrote the last reply to the topic "{subject}" in the forum "{forum}"? '
        "Answer with the name of the account.",
        lambda data: [row for row in topics(data) if row["last"] != row["account"]],
        "link '{subject}' + link * + link '{last}'",
        "{last}",
        text("{last}"),
    ),
    in_forum(
        "day_of_topic",
        'On which day was the topic "{subject}" in the forum "{forum}" started? '
        "Answer with the date as year-month-day.",
        topics,
        "link '{subject}'",
        "{day}",
        date("{day}"),
    ),
    in_forum(
        "replies_to_topic",
        'How many replies does the topic "{subject}" in the forum "{forum}" have? Answer with the number.',
        lambda data: balanced((row for row in topics(data) if row["replies"] > 2), "replies"),
        "link '{subject}' + StaticText * + StaticText * + StaticText '{replies}'",
        "{replies}",
        number("{replies}", "reply"),
    ),
    in_forum(
        "topic_with_most_replies",
        'Which topic of the forum "{forum}" has the most replies? Answer with its subject.',
        lambda data: list(leading(data, "replies")),
        "link '{subject}' + StaticText * + StaticText * + StaticText '{replies}'",
        "{subject}",
        text("{subject}"),
    ),
    in_forum(
        "topic_with_most_views",
        'Which topic of the forum "{forum}" has been viewed most often? Answer with its subject.',
        lambda data: list(leading(data, "views", margin=20)),
        "link '{subject}' + StaticText * + StaticText * + StaticText * + StaticText '{views}'",
        "{subject}",
        text("{subject}"),
    ),
    of_starter(
        "posts_of_starter",
        'How many posts has the member written who started the topic "{subject}" in the forum "{forum}"? '
        "Answer with the number that the member's profile shows.",
        "heading '{member_posts}' + StaticText 'Posts'",
        "{member_posts}",
        number("{member_posts}", "post"),
    ),
    of_starter(
        "topics_of_starter",
        'How many topics has the member started who started the topic "{subject}" in the forum "{forum}"? '
        "Answer with the number that the member's profile shows.",
        "heading '{member_topics}' + StaticText 'Topics'",
        "{member_topics}",
        number("{member_topics}", "topic"),
    ),
    Template(
        "town_of_starter",
        SITES,
        'From which town does the member send greetings who started the topic "{subject}" in the forum "{forum}"? '
        "Answer with the town that stands in the signature.",
        lambda data: balanced(topics(data), "town"),
        [*TO_TOPIC, stop("{town}", TOPIC, "link '{account}' » StaticText 'Greetings from {town}'")],
        text("{town}"),
    ),
    Template(
        "people_in_topic",
        SITES,
        'Which members have replied to the topic "{subject}" in the forum "{forum}"? '
        "List the names of their accounts, separated by semicolons.",
        lambda data: list(discussions(data)),
        [*TO_TOPIC, stop("{shown}", TOPIC, "heading 'Re: {subject}'")],
        all_of("{people}"),
    ),
    Template(
        "votes_in_poll",
        SITES,
        'How many votes have been cast in the poll of the topic "{subject}" in the forum "{forum}"? '
        "Answer with the number.",
        lambda data: list(polls(data)),
        [*TO_TOPIC, click("link 'View results'", TOPIC), stop("{votes}", TOPIC, "StaticText 'Total votes: {votes}'")],
        number("{votes}", "vote"),
    ),
    Template(
        "posts_found",
        SITES,
        'How many results does the forum\'s search give for "{word}"? Answer with the number.',
        searches,
        [
            enter("searchbox 'Search'", "{word}"),
            stop("{count}", "StaticText 'Your search has returned {count} results'"),
        ],
        number("{count}", "result"),
    ),
    # ---- pages to be opened ----
    Template(
        "page_of_forum",
        SITES,
        'Open the forum "{name}".',
        forums,
        [*TO_FORUM, stop("", FORUM)],
        url="{path}",
    ),
    Template(
        "page_of_topic",
        SITES,
        'Open the topic "{subject}" in the forum "{forum}".',
        lambda data: topics(data)[5:],
        [*TO_TOPIC, stop("", TOPIC)],
        url="{path}",
    ),
    Template(
        "profile_of_starter",
        SITES,
        'Open the profile of the member who started the topic "{subject}" in the forum "{forum}".',
        lambda data: topics(data)[9:],
        [
            *TO_FORUM,
            click("link '{subject}' + link '{account}'", FORUM),
            stop("", "heading '{account} profile' level: 1"),
        ],
        url="/member/profile/{member}",
    ),
    Template(
        "search_for_words",
        SITES,
        'Show what the forum\'s search finds for "{word}".',
        searches,
        [enter("searchbox 'Search'", "{word}"), stop("", "StaticText 'Your search has returned {count} results'")],
        url="/search",
        url_query={"q": "{word}"},
    ),
    # ---- changes ----
    Template(
        "new_topic",
        SITES,
        'Start a topic with the subject "{subject}" and the text "{text}" in the forum "{forum}".',
        to_start,
        [
            *TO_FORUM,
            click("link 'New topic'", FORUM),
            *form({"textbox 'Subject'": "{subject}", "textbox": "{text}"}, "button 'Submit'"),
            stop("", TOPIC, "link 'Post reply'"),
        ],
        state=[
            state(
                "reddit",
                "topics",
                [{"forum": "{forum}", "account": MODERATOR, "posts": 1, "type": "normal", "status": "open"}],
                subject="{subject}",
            ),
            rows_are(
                "reddit",
                "SELECT subject, content FROM forum_conversation_post WHERE created > ?",
                [{"subject": "{subject}", "content": "{text}"}],
                _NOW,
            ),
        ],
    ),
    Template(
        "reply_to_topic",
        SITES,
        'Reply to the topic "{subject}" in the forum "{forum}" with the text "{text}"',
        replied,
        [
            *TO_TOPIC,
            click("link 'Post reply'", TOPIC),
            *form({"textbox": "{text}"}, "button 'Submit'", "heading 'Post a reply'"),
            stop("", TOPIC, "link 'Post reply'", "StaticText '{text}'"),
        ],
        state=[
            rows_are(
                "reddit",
                "SELECT topic_id AS topic, content FROM forum_conversation_post WHERE created > ? OR updated > ?",
                [{"topic": "{id}", "content": "{text}"}],
                _NOW,
                _NOW,
            )
        ],
    ),
    Template(
        "mend_opening_post",
        SITES,
        'Replace the text of the first post of the topic "{subject}" in the forum "{forum}" by "{text}"',
        mended,
        [
            *TO_TOPIC,
            click("link 'Edit'", TOPIC),
            *form({"textbox": "{text}"}, "button 'Submit'", "textbox 'Subject' value: '{subject}'"),
            stop("", TOPIC, "link 'Post reply'", "StaticText '{text}'"),
        ],
        state=[
            rows_are(
                "reddit",
                "SELECT id, subject, content FROM forum_conversation_post WHERE created > ? OR updated > ?",
                [{"id": "{opening}", "subject": "{subject}", "content": "{text}"}],
                _NOW,
                _NOW,
            )
        ],
    ),
    Template(
        "vote_in_poll",
        SITES,
        'Vote for "{option}" in the poll of the topic "{subject}" in the forum "{forum}".',
        lambda data: list(polls(data)),
        [
            *TO_TOPIC,
            click("radio '{option}' checked: false", TOPIC),
            click("button 'Submit'", TOPIC, "radio '{option}' checked: true"),
            stop("", TOPIC, "link 'Change your vote'"),
        ],
        state=[
            rows_are(
                "reddit",
                "SELECT v.poll_option_id AS option FROM forum_polls_topicpollvote v"
                " JOIN auth_user u ON u.id = v.voter_id WHERE u.username = ? AND v.timestamp > ?",
                [{"option": "{option_id}"}],
                MODERATOR,
                _NOW,
            ),
        ],
    ),
    Template(
        "subscribe_to_topic",
        SITES,
        'Subscribe to the topic "{subject}" in the forum "{forum}".',
        lambda data: plain(data)[20:],
        [
            *TO_TOPIC,
            click("link 'Subscribe'", TOPIC),
            click(SURE, "heading 'Subscribe to topic'"),
            stop("", TOPIC, "link 'Unsubscribe'"),
        ],
        state=[state("reddit", "subscriptions", [{"topic": "{id}"}], account=MODERATOR)],
    ),
    moderate(
        "lock_topic",
        'Lock the topic "{subject}" in the forum "{forum}".',
        to_lock,
        "Lock topic",
        "Lock topic",
        stop("", TOPIC, "StaticText 'This topic has been locked successfully.'"),
        [ids("status = 1", "{locked}")],
    ),
    moderate(
        "unlock_topic",
        'Unlock the topic "{subject}" in the forum "{forum}".',
        locked,
        "Unlock topic",
        "Unlock topic",
        stop("", TOPIC, "StaticText 'This topic has been unlocked successfully.'"),
        [ids("status = 1", "{others}")],
    ),
    moderate(
        "make_topic_sticky",
        'Make the topic "{subject}" in the forum "{forum}" a sticky one.',
        to_raise,
        "Change to sticky topic",
        "Change topic type",
        stop("", TOPIC, "StaticText 'This topic type has been changed successfully.'"),
        [ids("type = 1", "{sticky}")],
    ),
    moderate(
        "delete_topic",
        'Delete the topic "{subject}" in the forum "{forum}".',
        to_delete,
        "Delete topic",
        "Delete topic",
        stop("", FORUM, "StaticText 'This topic has been deleted successfully.'"),
        [
            rows_are("reddit", "SELECT COUNT(*) AS left FROM forum_conversation_topic", [{"left": "{left}"}]),
            rows_are("reddit", "SELECT id FROM forum_conversation_topic WHERE id = ?", [], "{id}"),
        ],
    ),
    Template(
        "move_topic",
        SITES,
        'Move the topic "{subject}" from the forum "{forum}" to the forum "{other}", and leave it open.',
        lambda data: only(to_move(data), "subject"),
        [
            *TO_TOPIC,
            click("link 'Subscribe' » button expanded: false", TOPIC),
            click("link 'Move topic'", TOPIC),
            *form({"combobox 'Select a destination forum'": "-- {other}"}, SURE, "heading 'Move topic'"),
            stop("", TOPIC, "link 'Forum index' » link '{other}'"),
        ],
        state=[
            state("reddit", "topics", [{"forum": "{other}", "account": "{account}"}], subject="{subject}"),
        ],
    ),
    Template(
        "new_signature",
        SITES,
        'Change my signature to "{text}"',
        given(*({"text": text_, "me": MODERATOR} for text_ in _SIGNATURES)),
        [
            click("link '{me}'"),
            click("link 'Edit profile'", "heading '{me} profile'"),
            *form({"textbox": "{text}"}, "button 'Submit'", "heading 'Edit forum profile'"),
            stop("", "StaticText 'The profile has been edited successfully.'"),
        ],
        state=[state("reddit", "members", [{"signature": "{text}"}], account=MODERATOR)],
    ),
)
