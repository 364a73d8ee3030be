// The files of the page at /, built into the program.
#pragma once

#include <string_view>

namespace sluice {

// "index.html", "style.css", "markdown.js", "app.js"; empty: there is no such file.
[[nodiscard]] std::string_view page_file(std::string_view name);

}  // namespace sluice
