"""What a `LakeTable` says about its index. Decides nothing: the index is a cache."""

from __future__ import annotations

from tandem.spec.fields import DnsName, Model
from tandem.spec.index.bloom_filters import BloomFilters


class IndexSettings(Model):
    bloom_filters: BloomFilters | None = None
    """Bloom filters that Tandem's jobs write into new data files; none by default. Existing files
    get them by a SegmentRewrite with `addBloomFilters`. See docs/index.md."""
    server: DnsName | None = None
    """Name of an `IndexServer` in the same namespace, which Tandem's readers ask first. Without
    it, and where it does not answer, each reader's own process answers: the rows are the same."""
