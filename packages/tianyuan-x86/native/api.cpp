#include "tiers.hpp"
