// What strangers named, made harmless for a terminal: text in UTF-8, in tables and in JSON.
//
// Unsafe characters move the cursor, or reorder or hide the text next to them: control and format
// characters (escapes, line ends, direction overrides, zero-width ones), and bytes that are no
// UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ravenstore::core {

// `text` with '?' for each unsafe character and byte.
std::string Printable(std::string_view text);

// `text` as a JSON string, quotes included: unsafe characters are escaped, so that a program reads
// them as they were and a terminal does not see them. Also '<', which could end a page's script.
// Bytes that are no UTF-8 become U+FFFD.
std::string JsonQuoted(std::string_view text);

// How many columns of a terminal `text` takes: wide characters (of East Asia, emoji) two, those
// that join the one before none.
size_t DisplayWidth(std::string_view text);

// The whole `text` if it takes at most `columns`, else as much of its beginning as leaves room for
// an ellipsis.
std::string CutToWidth(std::string_view text, size_t columns);

}  // namespace ravenstore::core
