"""Haystack's search on the tenant's own database: there is no index beside it that would have to be reset.

Shop and forum build their searches with haystack; this carries them out as queries of Django's, with the filters,
orders and facets that the two ask for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

from django.apps import apps
from django.db.models import Q
from haystack.backends import BaseEngine, BaseSearchBackend, BaseSearchQuery, SearchNode
from haystack.constants import DJANGO_CT
from haystack.models import SearchResult

from agentgym_envs.webarena.sites.tenants import visit

_PHRASES = re.compile(r'"([^"]+)"|(\S+)')
_RANGE = re.compile(r"\[(\S+) TO (\S+)\]")


class Searchable(NamedTuple):
    """How the fields of an index are found in the database.

    Attributes:
        model: Label of the model.
        words: Lookups of the texts that are searched for words, the most telling one first.
        lookups: Field of the index to its lookup.
        order: Order of results where none is asked for.
        related: What results need besides themselves.
    """

    model: str
    words: tuple[str, ...]
    lookups: dict[str, str]
    order: tuple[str, ...]
    related: tuple[str, ...]


_PRODUCTS = Searchable(
    model="catalogue.Product",
    words=("title", "upc", "description"),
    lookups={
        "category": "productcategory__category",
        "is_public": "is_public",
        "structure": "structure",
        "price": "stockrecords__price",
        "rating": "rating",
        "product_class": "product_class__name",
        "date_created": "date_created",
        "title_exact": "title",
    },
    order=("-id",),
    related=(),
)
_POSTS = Searchable(
    model="forum_conversation.Post",
    words=("subject", "content"),
    lookups={"forum": "topic__forum", "topic_subject": "topic__subject", "poster_name": "poster__username"},
    order=("-created", "-id"),
    related=("poster", "topic__forum"),
)


def _searchable() -> Searchable:
    return _POSTS if visit().site == "reddit" else _PRODUCTS


def _words(value: str, lookups: Iterable[str]) -> Q:
    """All words and quoted phrases, each in one of the fields; those after a minus sign in none."""
    found = Q()
    for phrase, word in _PHRASES.findall(value):
        excluded = word.startswith("-") and len(word) > 1
        text = phrase or word.removeprefix("-" if excluded else "")
        anywhere = reduce(or_, (Q(**{f"{lookup}__icontains": text}) for lookup in lookups))
        found &= ~anywhere if excluded else anywhere
    return found


def _range(lookup: str, low: str, high: str) -> Q:
    condition = Q() if low == "*" else Q(**{f"{lookup}__gte": low})
    return condition if high == "*" else condition & Q(**{f"{lookup}__lte": high})


class TenantSearchQuery(BaseSearchQuery):
    """A search, as a condition of Django's."""

    def build_query(self) -> Q:
        """All filters as one condition."""
        return self._condition(self.query_filter)

    def _condition(self, node: SearchNode) -> Q:
        parts = [
            self._condition(child) if isinstance(child, SearchNode) else self._filter(*child) for child in node.children
        ]
        joined = reduce(or_ if node.connector == SearchNode.OR else and_, parts, Q()) if parts else Q()
        return ~joined if node.negated else joined

    def _filter(self, expression: str, value: Any) -> Q:
        searchable = _searchable()
        field, kind = self.query_filter.split_expression(expression)
        if field in ("content", "text"):
            return _words(str(value), searchable.words)
        lookup = searchable.lookups[field]
        if kind == "in":
            return Q(**{f"{lookup}__in": list(value)})
        if hasattr(value, "input_type_name") or kind == "icontains":
            return _words(str(value), [lookup])
        return Q(**{lookup: True if value == "true" else value})


class TenantSearchBackend(BaseSearchBackend):
    """Finds rows instead of documents of an index; there is nothing to be updated."""

    def update(self, index: Any, iterable: Any, commit: bool = True) -> None:
        """The rows are the index."""

    def remove(self, obj_or_string: Any, commit: bool = True) -> None:
        """The rows are the index."""

    def clear(self, models: Any = None, commit: bool = True) -> None:
        """The rows are the index."""

    def search(self, query_string: Any, **options: Any) -> dict[str, Any]:
        """Carry a search out.

        Args:
            query_string: The condition that `TenantSearchQuery` has built.
            **options: Haystack's options; those that shop and forum use are heeded.

        Returns:
            Results, their number and the counts of facets.
        """
        searchable = _searchable()
        condition = query_string & self._narrowed(searchable, options.get("narrow_queries", ()))
        model = apps.get_model(searchable.model)
        # What the application itself reads for results; one row each, however many rows it was found through.
        rows = self._index(model).read_queryset().filter(pk__in=model.objects.filter(condition).values("pk"))
        order = [self._order(searchable, name) for name in options.get("sort_by", ())]
        found = rows.select_related(*searchable.related).order_by(*order, *searchable.order)
        hits = found.count()
        page = found[options.get("start_offset", 0) : options.get("end_offset")]
        return {
            "results": [self._result(row, options.get("result_class") or SearchResult) for row in page],
            "hits": hits,
            "facets": self._facets(searchable, rows, options) if "facets" in options else {},
        }

    def _narrowed(self, searchable: Searchable, queries: Iterable[str]) -> Q:
        """Conditions such as `rating:("4" OR "5")` and `price:([20 TO 40])`."""
        condition = Q()
        for query in queries:
            field, _, values = query.partition(":")
            lookup = searchable.lookups.get(field.removesuffix("_exact"))
            if lookup is None:
                continue
            choices = [self._choice(lookup, value.strip('"')) for value in values.strip("()").split(" OR ")]
            condition &= reduce(or_, choices)
        return condition

    def _choice(self, lookup: str, value: str) -> Q:
        limits = _RANGE.fullmatch(value)
        if limits is not None:
            return _range(lookup, limits[1], limits[2])
        if lookup == "rating":  # shown, and chosen, without its fraction
            return Q(rating__gte=value, rating__lt=int(value) + 1) if value.isdecimal() else Q(pk=None)
        return Q(**{lookup: value})

    def _order(self, searchable: Searchable, name: str) -> str:
        sign = "-" if name.startswith("-") else ""
        return sign + searchable.lookups[name.removeprefix("-")]

    def _facets(self, searchable: Searchable, rows: Any, options: dict[str, Any]) -> dict[str, Any]:
        fields = {}
        for field in options["facets"]:
            values = rows.values_list(searchable.lookups[field.removesuffix("_exact")], flat=True)
            counts = Counter(int(value) if isinstance(value, float) else value for value in values if value is not None)
            fields[field] = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
        queries = {}
        for field, query in options.get("query_facets", ()):
            name = field.removesuffix("_exact")
            limits = _RANGE.fullmatch(query)
            assert limits is not None, query
            queries[f"{name}:{query}"] = rows.filter(_range(searchable.lookups[name], limits[1], limits[2])).count()
        return {"fields": fields, "queries": queries, "dates": {}}

    def _result(self, row: Any, result_class: Any) -> Any:
        fields = {}
        if visit().site == "reddit":  # its templates show what an index would have stored
            fields = self._index(type(row)).full_prepare(row)
            fields = {name: value for name, value in fields.items() if name not in ("id", DJANGO_CT, "django_id")}
        result = result_class(row._meta.app_label, row._meta.model_name, row.pk, 0, **fields)
        result._object, result._model = row, type(row)
        return result

    def _index(self, model: Any) -> Any:
        from haystack import connections

        return connections[self.connection_alias].get_unified_index().get_index(model)


class Engine(BaseEngine):
    """What the settings name."""

    backend = TenantSearchBackend
    query = TenantSearchQuery
