"""Text to the weights that Vitess's ``unicode_loose_*`` functions hash: neither case nor accents count.

Vitess takes the sort key of Go's x/text for English at its loosest strength. Go keeps the tables of the root
collation of CLDR 23: two bytes for each primary weight, none for a mark. This module has the Latin letters with all
their accents, digits, and the usual signs and blanks. Other text is refused: it would need all of the tables.

Called by ``freshness.database.sharding``. Depends on no table of the running Python that changes with its version.
"""

from __future__ import annotations

from typing import Final
from unicodedata import ucd_3_2_0

from freshness.errors import FormatError

# The middle dot is missing on purpose: after an l it has no weight of its own.
# fmt: off
_CHARACTERS: Final = {
    "0100": "\t", "0101": "\n", "0102": "\v", "0103": "\f", "0104": "\r", "0109": " \xa0", "010B": "_",
    "010D": "-", "0113": "\u2010", "0115": "\u2013", "0116": "\u2014", "0120": ",", "0131": ";",
    "0136": ":", "015D": "!", "015E": "¡", "0162": "?", "0163": "¿", "0172": ".", "017201720172": "…",
    "01E9": "'", "01EA": "‘", "01EB": "’", "01EC": "‚", "01EE": "‹", "01EF": "›", "01F0": "\"", "01F1": "“",
    "01F2": "”", "01F3": "„", "01F8": "«", "01F9": "»", "01FA": "(", "01FB": ")", "01FC": "[", "01FD": "]",
    "01FE": "{", "01FF": "}", "0267": "§", "0269": "¶", "026B": "@", "026C": "*", "0271": "/", "0272": "\\",
    "0273": "&", "0275": "#", "0276": "%", "0278": "‰", "027C": "†", "027D": "‡", "0281": "•", "030F": "`",
    "0310": "´", "0312": "^", "0313": "¯", "0316": "¨", "0319": "¸", "0382": "°", "040C": "©", "040D": "®",
    "049C": "+", "049D": "±", "049E": "÷", "049F": "×", "04A0": "<", "04A1": "=", "04A2": ">", "04A3": "¬",
    "04A4": "|", "04A5": "¦", "04A6": "~", "13ED": "¤", "13EE": "¢", "13EF": "$", "13F0": "£", "13F1": "¥",
    "1407": "€", "14E6": "0", "14E7": "1¹", "14E704AC14E8": "½", "14E704AC14EA": "¼", "14E8": "2²",
    "14E9": "3³", "14E904AC14EA": "¾", "14EA": "4", "14EB": "5", "14EC": "6", "14ED": "7", "14EE": "8",
    "14EF": "9", "15EF": "Aaª", "15EF164C": "Ææ", "1605": "Bb", "161D": "Cc", "1631": "DdÐðĐđ",
    "164C": "Ee", "1684": "Ff", "1691": "Gg", "16B4": "HhĦħ", "16CD": "Ii", "16CD16E6": "Ĳĳ", "16D1": "ı",
    "16E6": "Jj", "16FF": "Kk", "1711": "LlŁł", "1741": "Mm", "174F": "Nn", "176D": "Ŋŋ", "1771": "OoºØø",
    "1771164C": "Œœ", "1796": "Pp", "17AB": "Qq", "17B9": "ĸ", "17BD": "Rr", "17F3": "Ssſ", "17F317F3": "ß",
    "1816": "Tt", "18161741": "™", "181B": "Ŧŧ", "1836": "Uu", "185F": "Vv", "1871": "Ww", "187B": "Xx",
    "1880": "Yy", "1895": "Zz", "18C4": "Þþ", "18EF174F": "ŉ", "193B": "µ",
}
# fmt: on
_WEIGHTS: Final = {
    **dict.fromkeys(map(chr, range(0x300, 0x363)), b""),
    **{each: bytes.fromhex(weights) for weights, group in _CHARACTERS.items() for each in group},
}


def weigh_loosely(text: str) -> bytes:
    """The primary weights of the text without the spaces at its end. Raises `FormatError` for unknown characters."""
    try:
        return b"".join(_WEIGHTS[each] for each in ucd_3_2_0.normalize("NFD", text.rstrip(" ")))
    except KeyError as error:
        raise FormatError(
            f"sharding: no known weight of the character U+{ord(error.args[0]):04X}",
            hint="unicode_loose_* is known for Latin letters, digits and usual signs; xxhash takes any text",
        ) from error
