#include "models/tokenizer/special_tokens.h"

#include "models/tokenizer/utf8.h"

namespace shoal::models {
namespace {

uint64_t edge(size_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

void SpecialTokens::add(std::string_view text, Token token, Options options) {
  if (text.empty()) return;
  size_t node = 0;
  for (const char byte : text) {
    const auto [found, is_new] = edges_.emplace(edge(node, byte), static_cast<uint32_t>(nodes_.size()));
    if (is_new) nodes_.emplace_back();
    node = found->second;
  }
  (options.templates_only ? nodes_[node].in_templates : nodes_[node].anywhere) = token;
  starts_[static_cast<unsigned char>(text.front())] = true;
  if (options.takes_space) take_space_.insert(token);
}

/// Returns the longest token that starts at a position. Control tokens must not extend beyond `template_end`.
SpecialTokens::Found SpecialTokens::longest_at(std::string_view text, size_t at, size_t template_end) const {
  Found found;
  size_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto next = edges_.find(edge(node, text[i]));
    if (next == edges_.end()) break;
    node = next->second;
    const size_t end = i + 1;
    if (nodes_[node].anywhere >= 0) found = {nodes_[node].anywhere, end - at};
    if (nodes_[node].in_templates >= 0 && end <= template_end) found = {nodes_[node].in_templates, end - at};
  }
  return found;
}

std::vector<TextFragment> SpecialTokens::cut(std::string_view text, std::span<const Range> templates) const {
  std::vector<TextFragment> fragments;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    while (!templates.empty() && templates.front().end <= at) templates = templates.subspan(1);
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const bool in_template = !templates.empty() && templates.front().begin <= at;
    Found found = longest_at(text, at, in_template ? templates.front().end : 0);
    if (found.token < 0) {
      ++at;
      continue;
    }
    if (take_space_.contains(found.token)) found.length += white_space(text.substr(at + found.length));
    if (at > begin) fragments.push_back({text.substr(begin, at - begin)});
    fragments.push_back({text.substr(at, found.length), found.token});
    begin = at += found.length;
  }
  if (begin < text.size()) fragments.push_back({text.substr(begin)});
  return fragments;
}

}  // namespace shoal::models
