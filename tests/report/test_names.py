"""What rows are called, and what a defence costs."""

from typing import Any

from robustmetric import recipe
from robustmetric.jobs.cost import cost
from robustmetric.report.names import label


def test_names_and_costs_of_defences() -> None:
    def of(name: str, **changes: Any) -> dict[str, Any]:
        return {**recipe.load(recipe.locate(name))["defence"], **changes}

    alternative = {"name": "ics", "triplet": ["a", "a~", "p~"], "weight": 0.25}
    assert label(of("cub/hm_lga", structure=alternative)) == "hm_lga_ics_a_at_pt_weight0_25"
    assert label(of("cub/hm_lga_ics", offset=1e-6)) == "hm_lga_ics_offset1em06", (
        "an attack of its own, a row of its own"
    )
    half = {"name": "between", "start": {"name": "semihard"}, "end": {"name": "softhard"}}
    assert label(of("cub/hm_lga", destination=half)) == "hm_between_m_s_0_5"
    assert label(of("cub/hm_lga", destination={**half, "share": 0.25})) == "hm_between_m_s_0_25", "a row of its own"
    boosted = {"name": "boosted", "miner": {"name": "random"}, "boost": 0.2}
    assert label(of("cub/hm_gb")) == "hm_gb" and label(of("cub/hm_gb", destination=boosted)) == "hm_gb_r_xi0_2"
    at = label(of("digits/madry"))
    assert label(of("digits/madry", growing=0.5)) == f"{at}_growing0_5" and label(of("digits/madry", growing=0)) == at
    assert label(of("cub/est", nudge="diagonal")) == "est_diagonal" and label(of("cub/est", nudge="random")) == "est"
    assert label(of("cub/act", plain_share=0.5)) == "act_plain0_5"
    assert label(of("sop/hm_lga_ics"), "sop") == "hm_lga_ics" != label(of("cub/hm_lga_ics"), "sop")
    assert label(of("cub/minmax_partial")) == "minmax_partial" and label(of("cub/ca_tride")) == "ca_tride"
    assert label(of("cub/hm_lga", destination={"name": "fixed", "value": 2})) == "hm_fixed2"
    # Forward passes an image: look 1, step 2, update 3; three images of triplets for two of the batch.
    assert cost(of("cub/plain")) == 3 and cost(of("cub/est")) == 1 + 2 * 8 + 3
    assert cost(of("cub/hm_lga")) == 1 + 2 * 8 * 1.5 + 3 * 1.5
    assert cost(of("cub/hm_lga_ics")) == cost(of("cub/hm_lga")) + 3, "the clean anchors and positives once more"
    assert cost(of("cub/hm_s_s")) == 1 + 3 * 1.5, "equal source and destination: nothing is attacked"
    assert cost(of("cub/ca_tride")) == 1 + 2 * 16 * 0.75 + 3 * 1.5
    assert cost(of("cub/free_hm")) == 0.25 + 4.5
    assert cost({"name": "my_lab.Mine"}) is None
