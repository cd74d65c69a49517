# Turns files into a C++ source, for files that the program carries: cmake -DOUTPUT=… -DFILES="a;b" -P embed_files.cmake.
# The source defines page_files() of src/server/chat_page.h.
cmake_minimum_required(VERSION 3.25)

set(entries)
foreach(file IN LISTS FILES)
  get_filename_component(name "${file}" NAME)
  file(READ "${file}" bytes HEX)
  file(SIZE "${file}" size)
  file(SHA256 "${file}" digest)
  string(SUBSTRING "${digest}" 0 16 digest)
  # Sixty bytes a line; an escape is always followed by another or by the quote, so it never swallows a digit.
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
  string(REPEAT "...." 60 line)
  string(REGEX REPLACE "(${line})" "\\1\"\n     \"" bytes "${bytes}")
  string(APPEND entries "    {\"${name}\", \"\\\"${digest}\\\"\",\n     {\"${bytes}\", ${size}}},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Written by scripts/cmake/embed_files.cmake.
#include \"server/chat_page.h\"

namespace glm53::server {
namespace {
constexpr PageFile kFiles[] = {
${entries}};
}  // namespace

std::span<const PageFile> page_files() { return kFiles; }

}  // namespace glm53::server
")
