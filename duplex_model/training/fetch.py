"""`python -m duplex_model.training.fetch DATASET LANGUAGES` (`make data DATASET=...`): training text through `mtdata`.

Writes DATA-DIR/DATASET/train.SOURCE and train.TARGET, one sentence a line, which a recipe names as DATASET/train. The
names of the data sets are those of `mtdata list -l de-en`; each has its own licence. Needs the extra `data`.
"""

import argparse
import difflib
import os
from pathlib import Path

from duplex_model.settings import add_data_dir, split_languages


def find_entry(dataset, languages):
    """(entry of mtdata's index, whether its sides are swapped) of a data set for a pair such as "de-en".

    Raises ValueError for an unknown data set or pair, and if mtdata is not installed.
    """
    try:
        from mtdata.index import get_entries
        from mtdata.iso.bcp47 import BCP47Tag, bcp47
    except ImportError as error:
        raise ValueError("training text needs mtdata: pip install -e '.[data]'") from error
    source, target = split_languages(languages)
    pair = bcp47(source), bcp47(target)  # ValueError for a code that is none
    entries = {str(entry.did): entry for entry in get_entries(langs=pair, fuzzy_match=True)}
    if dataset not in entries:
        near = difflib.get_close_matches(dataset, entries, n=3, cutoff=0.0)
        raise ValueError(f"data set {dataset!r} is none of mtdata's for {languages}; near it: {', '.join(near)}")
    _, swapped = BCP47Tag.check_compat_swap(pair, entries[dataset].did.langs)
    return entries[dataset], swapped


def read_entry(entry, files):
    """The records of a data set, source and target of the entry first, downloaded into mtdata's cache if not yet there.

    files: the text files that would be made of it. Raises FileNotFoundError naming what to place by hand if the network
    fails or a part of the data set cannot be had.
    """
    import mtdata
    from mtdata.cache import OPUS_XCES, Cache
    from mtdata.parser import HF_EXT, Parser

    cache = Cache(mtdata.cache_dir)
    try:
        paths = cache.get_entry(entry)
    except (OSError, AssertionError, mtdata.MTDataException) as error:  # AssertionError: a server's answer but 200
        by_hand = f"{files[0]} and {files[1].name}, aligned line by line"
        if entry.ext != HF_EXT:
            parts = entry.in_paths if entry.in_ext == OPUS_XCES else ()
            urls = [*([entry.url] if isinstance(entry.url, str) else entry.url), *parts]
            name = entry.filename if isinstance(entry.url, str) and not parts else None
            places = [(url, cache.get_local_path(url, name, fix_missing=False)) for url in urls]
            raw = "; ".join(f"{url} as {path}, with an empty {cache.get_flag_file(path)}" for url, path in places)
            by_hand = f"either {raw}; or {by_hand}"
        message = f"data set {entry.did} cannot be fetched ({error}); place by hand: {by_hand}"
        raise FileNotFoundError(message) from error
    return Parser(paths, ext=entry.in_ext or None, ent=entry).read_segs(show_pbar=False)


def write_pairs(records, swapped, files):
    """Write the records' pairs into two text files; returns (pairs written, records left out for an empty side).

    Every blank becomes a space, so that a line stays one line. The files appear only when both are whole. Raises
    ValueError if no pair is left.
    """
    written = dropped = 0
    scratch = [file.with_name(file.name + ".tmp") for file in files]
    with open(scratch[0], "w", encoding="utf-8") as source, open(scratch[1], "w", encoding="utf-8") as target:
        for record in records:
            sides = [" ".join((side or "").split()) for side in record[:2]]
            if len(sides) < 2 or not all(sides):
                dropped += 1
                continue
            for file, side in zip((source, target), reversed(sides) if swapped else sides, strict=True):
                file.write(side + "\n")
            written += 1
    if not written:
        for file in scratch:
            file.unlink()
        raise ValueError(f"{files[0].parent.name}: none of its {dropped} records has text on both sides")
    for old, new in zip(scratch, files, strict=True):
        os.replace(old, new)
    return written, dropped


def fetch(dataset, languages, data_dir):
    """(source, target) files of a data set of mtdata's for a pair such as "de-en", fetched if they are not there yet.

    Raises ValueError or FileNotFoundError as `find_entry`, `read_entry` and `write_pairs` do.
    """
    folder = Path(data_dir) / dataset
    files = [folder / f"train.{language}" for language in split_languages(languages)]
    if all(file.is_file() for file in files):
        return files
    entry, swapped = find_entry(dataset, languages)
    records = read_entry(entry, files)
    folder.mkdir(parents=True, exist_ok=True)
    written, dropped = write_pairs(records, swapped, files)
    print(f"{dataset}: {written} pairs, {dropped} left out for an empty side")
    return files


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m duplex_model.training.fetch", description=__doc__)
    parser.add_argument("dataset", help="such as Statmt-europarl-10-deu-eng")
    parser.add_argument("languages", help="source and target, such as de-en: the files' endings")
    add_data_dir(parser)
    args = parser.parse_args(arguments)
    try:
        files = fetch(args.dataset, args.languages, args.data_dir)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(*files, sep="\n")


if __name__ == "__main__":
    main()
