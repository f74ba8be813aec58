"""Fills the forum: members, forums, topics, replies, polls and who may do what."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils.text import slugify
from machina.core.db.models import get_model
from machina.core.loading import get_class

from agentgym_envs.webarena.sites.accounts import MODERATOR
from agentgym_envs.webarena.sites.content import talk
from agentgym_envs.webarena.sites.content.accounts import make_users, set_dates, store_sessions
from agentgym_envs.webarena.sites.content.draw import Draw
from agentgym_envs.webarena.sites.content.people import CITIES, Person, people
from agentgym_envs.webarena.sites.tenants import START

MEMBERS = 60
NOW = datetime.fromtimestamp(START, UTC)

Forum = get_model("forum", "Forum")
ForumPermission = get_model("forum_permission", "ForumPermission")
ForumProfile = get_model("forum_member", "ForumProfile")
Poll = get_model("forum_polls", "TopicPoll")
PollOption = get_model("forum_polls", "TopicPollOption")
PollVote = get_model("forum_polls", "TopicPollVote")
Post = get_model("forum_conversation", "Post")
Topic = get_model("forum_conversation", "Topic")
UserForumPermission = get_model("forum_permission", "UserForumPermission")


def fill() -> None:
    """Fill the empty forum."""
    warden = Person("Robin", "Ashdown")
    users = make_users([*people(Draw("members"), MEMBERS), warden], {warden: MODERATOR}, _joined)
    store_sessions("reddit", users)
    _permissions()
    forums = _forums()
    posts = _topics(forums, users)
    draw = Draw("profiles")
    counts = Counter(post.poster_id for post in posts)
    profiles = [
        ForumProfile(user=user, posts_count=counts[user.pk], signature=f"Greetings from {draw.one(CITIES)[0]}")
        for user in users
    ]
    _render(profiles, "signature")
    ForumProfile.objects.bulk_create(profiles)
    for forum, _ in forums:
        Forum.objects.get(pk=forum.pk).update_trackers()


def _joined(number: int) -> datetime:
    return NOW - timedelta(days=1300 - number * 13, hours=number % 9)


def _permissions() -> None:
    """Everybody may read; what members may do stands in the settings."""
    get_class("forum_permission.receivers", "create_permissions")  # rows of permissions are made at migration
    for name in ("can_see_forum", "can_read_forum", "can_download_file"):
        permission = ForumPermission.objects.get(codename=name)
        UserForumPermission.objects.create(permission=permission, anonymous_user=True, has_perm=True)
        UserForumPermission.objects.create(permission=permission, authenticated_user=True, has_perm=True)


def _forums() -> list[tuple[Any, tuple[str, ...]]]:
    made = []
    for category, forums in talk.FORUMS.items():
        parent = Forum.objects.create(name=category, type=Forum.FORUM_CAT)
        for name, things in forums.items():
            forum = Forum.objects.create(
                name=name,
                parent=parent,
                type=Forum.FORUM_POST,
                description=f"For everything about {things[0]}, {things[1]} and the like.",
            )
            made.append((forum, things))
    return made


def _topics(forums: list[tuple[Any, tuple[str, ...]]], users: list[User]) -> list[Any]:
    draw = Draw("topics")
    topics: list[Any] = []
    posts: list[Any] = []
    dates: list[datetime] = []
    polls: list[Any] = []
    for forum, things in forums:
        pairs = [(template, thing) for template in talk.SUBJECTS for thing in things]
        for template, thing in draw.some(pairs, draw.integer(9, 20)):
            words = {"thing": thing, "Thing": thing[0].upper() + thing[1:]}
            subject = template.format(**words)
            when = NOW - timedelta(days=draw.skewed(1, 700), minutes=draw.integer(0, 1400))
            poster = draw.one(users)
            topic = Topic(
                forum=forum,
                poster=poster,
                subject=subject,
                slug=slugify(subject),
                type=Topic.TOPIC_STICKY if draw.chance(0.03) else Topic.TOPIC_POST,
                status=Topic.TOPIC_LOCKED if draw.chance(0.03) else Topic.TOPIC_UNLOCKED,
                approved=True,
                views_count=draw.skewed(5, 900),
            )
            topic.dates = [when]
            topics.append(topic)
            polls += [topic] if draw.chance(0.06) else []
            opening = [draw.one(talk.OPENERS), *draw.some(talk.DETAILS, 2), draw.one(talk.QUESTIONS)]
            texts = [(poster, subject, " ".join(opening))]
            for _ in range(draw.skewed(0, 11)):
                texts.append((draw.one(users), f"Re: {subject}", draw.one(talk.REPLIES)))
                later = topic.dates[-1] + timedelta(minutes=draw.skewed(20, 4000))
                topic.dates.append(min(later, NOW - timedelta(minutes=30 - len(topic.dates))))
            for (author, title, text), date in zip(texts, topic.dates, strict=True):
                numbers = {"count": draw.integer(2, 30), "months": draw.integer(2, 18), "month": draw.one(talk.MONTHS)}
                content = text.format(**words, **numbers)
                posts.append(Post(topic=topic, poster=author, subject=title, content=content, approved=True))
                dates.append(date)
    Topic.objects.bulk_create(topics)
    _render(posts, "content")
    Post.objects.bulk_create(posts)
    set_dates(
        "forum_conversation_post",
        ("created", "updated"),
        [(date, date, post.pk) for post, date in zip(posts, dates, strict=True)],
    )
    _close_topics(topics, posts)
    _polls(polls, users)
    return posts


def _render(rows: list[Any], field: str) -> None:
    """Fill the HTML that pages show of a text; saving in bulk leaves it out."""
    for row in rows:
        row._meta.get_field(field).render_data(None, type(row), instance=row)


def _close_topics(topics: list[Any], posts: list[Any]) -> None:
    """Fill what topics repeat of their posts."""
    of_topic: dict[int, list[Any]] = {topic.pk: [] for topic in topics}
    for post in posts:
        of_topic[post.topic_id].append(post)
    for topic in topics:
        own = of_topic[topic.pk]
        topic.first_post, topic.last_post, topic.posts_count = own[0], own[-1], len(own)
        topic.last_post_on = topic.dates[-1]
    Topic.objects.bulk_update(topics, ["first_post", "last_post", "posts_count", "last_post_on"])
    set_dates(
        "forum_conversation_topic",
        ("created", "updated"),
        [(topic.dates[0], topic.dates[-1], topic.pk) for topic in topics],
    )


def _polls(topics: list[Any], users: list[User]) -> None:
    draw = Draw("polls")
    for topic in topics:
        poll = Poll.objects.create(topic=topic, question="How often do you do this?", max_options=1, user_changes=True)
        options = [PollOption.objects.create(poll=poll, text=text) for text in talk.POLL_OPTIONS]
        PollVote.objects.bulk_create(
            PollVote(poll_option=draw.one(options), voter=user) for user in draw.some(users, draw.integer(5, 40))
        )
