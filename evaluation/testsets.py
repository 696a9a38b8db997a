"""Test sets: files named in a configuration, or one of sacreBLEU's by its name; and what follows from the languages.

`python -m evaluation.testsets NAME LANGUAGES` (`make data`) fetches one of sacreBLEU's and prints where its files are.
"""

import argparse
import difflib
import importlib.util
import re
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from duplex_model.settings import split_languages

UNSPACED = {"zh": "zh", "ja": "ja-mecab"}  # target languages without blanks: sacreBLEU's tokenizer
MECAB = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}  # tokenizer: the module that it needs


def language_defaults(languages):
    """(latency unit, sacreBLEU tokenizer, notice or None) for a pair such as "en-zh" (None: words and 13a).

    Without its MeCab module a Japanese or Korean target falls back to characters, and the notice says so. Raises
    ValueError for anything but two languages.
    """
    if languages is None:
        return "word", "13a", None
    target = re.split("[-_]", split_languages(languages)[1].lower())[0]  # without script or region
    unit, tokenizer = ("char", UNSPACED[target]) if target in UNSPACED else ("word", "13a")
    tokenizer = "ko-mecab" if target == "ko" else tokenizer
    module = MECAB.get(tokenizer)
    if module and importlib.util.find_spec(module) is None:
        return unit, "char", f"{tokenizer} needs the Python module {module}: BLEU counts characters instead"
    return unit, tokenizer, None


def sacrebleu_files(name, languages):
    """(source, reference) files of sacreBLEU's test set `name` for a pair such as "de-en"; downloaded if not yet there.

    Raises ValueError for an unknown name or pair, FileNotFoundError naming what to place by hand if the network fails.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.0)
        raise ValueError(f"test set {name!r} is not one of sacreBLEU's; near it: {', '.join(near)}")
    data = DATASETS[name]
    if languages not in data.langpairs:
        raise ValueError(f"test set {name!r} has no pair {languages!r}; it has {', '.join(data.langpairs)}")
    try:
        return Path(data.get_source_file(languages)), Path(data.get_reference_files(languages)[0])
    except (OSError, SystemExit) as error:  # sacreBLEU ends the process on some network errors
        raw = Path(SACREBLEU_DIR) / name / "raw"
        by_hand = "; ".join(f"{url} as {raw / data._get_tarball_filename(url)}" for url in data.data)
        raise FileNotFoundError(f"test set {name!r} cannot be fetched ({error}); place by hand: {by_hand}") from error


def find_file(name, config_folder, data_dir):
    """The path of a test-set file. Raises FileNotFoundError naming both places."""
    places = [Path(config_folder) / name, Path(data_dir) / name]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(f"{name}: neither {places[0]} nor {places[1]} exists; set --data-dir or $DUPLEX_DATA_DIR")


def test_files(settings, config_folder, data_dir):
    """(source, reference) files of a TestSettings."""
    if settings.testset:
        return sacrebleu_files(settings.testset, settings.languages)
    return tuple(find_file(name, config_folder, data_dir) for name in (settings.source, settings.reference))


test_files.__test__ = False  # not a pytest function


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m evaluation.testsets", description=__doc__)
    parser.add_argument("name", help="such as iwslt17 or wmt19")
    parser.add_argument("languages", help="such as de-en")
    args = parser.parse_args(arguments)
    try:
        files = sacrebleu_files(args.name, args.languages)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(*files, sep="\n")


if __name__ == "__main__":
    main()
